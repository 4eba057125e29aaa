"""The request document: read, checked field by field, resolved into a request.

The records it becomes are in `solver.problem`.
"""
