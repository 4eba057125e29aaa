"""Re-plans: batches that plan again what a change made stale, and the changes that start them.

Single jobs are in `app.jobs`.
"""
