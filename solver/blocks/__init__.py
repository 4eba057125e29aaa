"""One block of operators on the ranks of a stage: its shardings, bytes and communication.

Whole models on n-D meshes are in `strategies`.
"""
