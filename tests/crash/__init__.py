"""Durability under violence: workers killed and frozen, databases restarted, disks filled."""
