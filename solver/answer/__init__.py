"""The answer: the plan, its stages and its certificate. The question is in `solver.problem`."""
