"""Digits in texts of others: 0 to 9 and no others, and no more of them than a number of 64 bits has."""

from __future__ import annotations

MOST_DIGITS = 18
"""Digits of the largest number that is read: each number of so many fits 64 bits."""


def is_digits(text: str, *, most: int = MOST_DIGITS) -> bool:
    """Return True for 1 to ``most`` digits 0 to 9, of which int() always makes a number.

    str.isdigit() takes "²", of which int() makes none, and str.isdecimal() the digits of every script.
    """
    return text.isascii() and text.isdigit() and len(text) <= most
