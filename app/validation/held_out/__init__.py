"""Sources left out: their runs predicted, and their bands drawn, by constants that were fitted to all other sources."""
