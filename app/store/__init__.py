"""Calibrations kept in the database and found again by name. Measuring and fitting them is in `app.evidence.measuring`."""
