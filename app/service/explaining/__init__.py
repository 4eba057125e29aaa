"""Launch commands that exist already: what one does, whether it starts and fits, and what plan is better."""
