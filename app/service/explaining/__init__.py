"""A launch command that exists: what it does, whether it starts and fits, what is better."""
