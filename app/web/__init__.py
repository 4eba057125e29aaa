"""REST, a resource a file, and the pages that a browser shows."""
