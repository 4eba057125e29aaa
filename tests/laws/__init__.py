"""Laws: sentences that hold of every answer, drawn at random against; a law a file, one table of them (`table.py`)."""
