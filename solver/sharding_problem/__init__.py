"""The engine for sharding problems of the contest's form: exact and large, always with a bound.

Where the costs come from is in `blocks` and `strategies`.
"""
