"""Time of operators on one device.

What they send to other devices is in `network`, what serving engines run is in `serving`.
"""
