"""Devices, links and clusters, what ranks see of them, and the energy they take.

The catalogue of real ones is in `hardware`.
"""
