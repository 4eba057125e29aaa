"""Strategies from named dims on an n-D mesh, for whole graphs of operators. One block on one tensor axis is in `blocks`."""
