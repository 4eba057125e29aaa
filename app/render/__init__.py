"""Plans as a person reads them in a terminal 80 columns wide."""
