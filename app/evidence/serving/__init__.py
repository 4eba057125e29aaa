"""Predictions of serving held against measured points. Those of training are in the folder beside it."""
