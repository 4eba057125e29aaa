"""Ways in: clusters in words, models by name and one line of options, as the parts of a request."""
