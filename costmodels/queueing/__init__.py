"""Queues of serving replicas: what they are asked and what requests see.

By formula in `analytic`, event by event in `simulation`.
"""
