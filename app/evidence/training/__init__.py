"""Predictions of training held against measured runs. Serving points are in `serving`."""
