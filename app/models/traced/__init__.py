"""Graphs that a framework traced, operator by operator, as model graphs. Models known by name are in `families`."""
