"""Memory of a training step on one device and its host. Memory of serving is in `serving`."""
