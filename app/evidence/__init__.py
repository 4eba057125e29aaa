"""Predictions against measurements: rows of training and serving, measured kernels and networks, logs of runs."""
