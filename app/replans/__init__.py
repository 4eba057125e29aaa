"""Re-plans: batches that plan again what a change of the fleet made stale."""
