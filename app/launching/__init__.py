"""Launchers: their flags, each declared once, and plans written out as their commands and files."""
