"""What is asked: the model graph, the request and its choices. What is answered is in `solver.answer`."""
