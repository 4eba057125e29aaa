"""Meshwright plans how large models train and serve on a cluster."""
