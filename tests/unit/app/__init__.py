"""Rooms of the app that need no database and no service."""
