"""Calibrations: measured, imported, fitted, stored and compared."""
