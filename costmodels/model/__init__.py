"""What a model is made of: operators over named dims, formats of their values, and how work is split.

Times are in `kernels`.
"""
