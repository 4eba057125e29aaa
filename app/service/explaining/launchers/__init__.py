"""Runs of launchers of training in the words of plans, a launcher a file; `trainer` is for scripts under several of them."""
