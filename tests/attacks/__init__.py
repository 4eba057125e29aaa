"""Attacks: what a stranger may try with names, documents and files, and what must not come of it."""
