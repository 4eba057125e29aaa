"""Measured times of kernels: taken, read from files of others, and made into calibration documents.

Stored ones are in `app.store`.
"""
