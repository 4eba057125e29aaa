"""Workers that change their layout between prompts and answers."""
