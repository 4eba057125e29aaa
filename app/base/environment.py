"""Variables of Python that processes hand on to those that they start."""

from __future__ import annotations

SAFE_PATH = "PYTHONSAFEPATH"
"""Keeps the current folder out of the places that Python imports from: what lies there is a stranger's."""
