"""Metrics and traces of a process. Log lines are in `app.logs`, the figures of the queue in `app.jobs`."""
