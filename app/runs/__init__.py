"""Measured runs of plans, as users report them or logs hold them, kept append-only."""
