"""Rules of training plans, computed from the graph and the request alone, apart from the search."""
