"""Jobs: plans made in the background, whatever happens to the processes that make them.

The worker process is in `app.worker`.
"""
