"""Forms of the curves that calibrations hold, without any device's constants. Constants are in `calibration`."""
