"""Several kinds of workers beside each other, each a plan of its own for a share of the arrivals."""
