"""Requests answered: from the store, at once in a child process, or as jobs that workers take; re-plans and runs."""
