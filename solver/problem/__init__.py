"""The question: the model graph, the request and its choices. The answer is in `solver.answer`."""
