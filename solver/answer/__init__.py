"""What is answered: the plan, its stages and its certificate. What is asked is in `solver.problem`."""
