"""The request file format ``meshwright.request/1``: read, checked field by field, resolved into a ``PlanRequest``."""
