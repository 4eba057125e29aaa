"""Queues of serving replicas: arrivals, continuous batching, percentiles; by simulation, and by an analytic model."""
