"""Implementations of frameworks by name: one data file each, every fact with its basis."""
