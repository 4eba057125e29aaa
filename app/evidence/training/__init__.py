"""Predictions of training against measured runs."""
