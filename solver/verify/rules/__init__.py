"""Rules that hold of training and serving plans alike. Those of one kind are in `training` and `serving`."""
