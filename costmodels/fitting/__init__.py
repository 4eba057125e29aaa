"""From measured times to calibrations, each with its held-out error.

Using calibrations is in `kernels`, `network` and `serving`.
"""
