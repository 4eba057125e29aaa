"""What a layer computes between its norms and its residual adds: attention, feed-forward, and their kin."""
