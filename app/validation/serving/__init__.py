"""Predictions against tables of measured serving points: closed loop at fixed concurrency, as public benchmarks run."""
