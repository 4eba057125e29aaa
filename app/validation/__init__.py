"""Predictions held against measured runs: read a table of runs, predict each from its plan alone, report the errors."""
