"""What a layer computes between its norms and its residual adds, one kind a file. Which model has which is in `families`."""
