"""Layouts that an engine can run, and what each can do. Which one keeps a promise is in `promise`."""
