"""Predictions of serving held against measured points. Training runs are in the folder above."""
