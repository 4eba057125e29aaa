"""The computation of a layer between its norms and its residual adds, one kind a file. The table of models is in `families`."""
