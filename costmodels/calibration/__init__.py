"""Calibrations: fitted curves of a device, read from documents.

The curves' forms are in `curves`, fitting them is in `fitting`.
"""
