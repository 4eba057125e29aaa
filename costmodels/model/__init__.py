"""The parts of a model: operators over named dims, formats of their values, and how work is split.

Times are in `kernels`.
"""
