"""Forms of a serving plan, one folder each. What all of them stand on is in `engines` and `promise`."""
