"""Logs of frameworks and results of benchmarks, read as the figures of a run, one writer a file."""
