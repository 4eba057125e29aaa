"""Replicas simulated event by event: continuous batching, pools, switching layouts. Formulas are in `analytic`."""
