"""Jobs: plans that are made in the background, by any number of worker processes, whatever happens to one of them."""
