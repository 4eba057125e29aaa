"""A pool of prefill workers and a pool of decode workers. One worker for both phases is in `replicas`."""
