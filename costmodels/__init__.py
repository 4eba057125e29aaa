"""The first floor: what a choice costs. Which choice is best is in `solver`."""
