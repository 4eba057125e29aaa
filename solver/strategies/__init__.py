"""Strategies from named dims on an n-D mesh: what every way to split an operator costs, and the best way for a whole graph."""
