"""Traced graphs: what a framework recorded of a model, operator by operator, as a model graph over named dims."""
