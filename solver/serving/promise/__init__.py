"""Does a layout keep its latency targets under a load, by bounds first and simulation then.

Which layouts there are is in `engines`.
"""
