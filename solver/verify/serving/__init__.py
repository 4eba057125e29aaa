"""Rules of serving plans, a form a file, computed apart from the search."""
