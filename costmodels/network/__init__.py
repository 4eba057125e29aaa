"""Time of what devices send to one another, and what of it hides under work. The links themselves are in `cluster`."""
