"""Launchers: their flags, each declared once, plans written out as their commands and files, and such commands read."""
