"""Sources left out of every fit: their scores, and bands of whole steps."""
