"""Replicas by node group: each group with a layout and a share of the batch of its own."""
