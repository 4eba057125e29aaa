"""The training search: mesh degrees, micro-batches, memory choices, shardings and uneven stages, searched together.

`planner` has its questions. Nothing is imported here: readers of requests and pages of plans take single rooms, not the search.
"""
