"""Percentiles and rates of a replica by formula, checked against `simulation`."""
