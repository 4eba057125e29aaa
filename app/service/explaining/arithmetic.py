"""Arithmetic of shells: integers, as in ``$(( NODES * 8 ))``."""

from __future__ import annotations

import re
from collections.abc import Callable

LONGEST = 500
"""Characters of an expression that is worked out."""
_LARGEST = 2**63
_MOST_BRACKETS = 20
_TOKEN = re.compile(r"\s*(?:(\d+)|\$?\{?([A-Za-z_]\w*)\}?|(\*\*|<<|>>|[-+*/%()]))")

_RANKS = {"<<": 1, ">>": 1, "+": 2, "-": 2, "*": 3, "/": 3, "%": 3, "**": 4}
"""How tightly operators bind."""


class _UndecidedError(Exception):
    """Raised for what is no such expression, or depends on what is not known."""


def integer_of(text: str, value_of: Callable[[str], str | None]) -> int | None:
    """Return the value of an expression; None for what a shell alone could work out.

    ``value_of`` gives the text of a variable, None of one that is not known.
    """
    if len(text) > LONGEST or text.count("(") > _MOST_BRACKETS:
        return None
    try:
        expression = _Expression(_tokens(text.strip()), value_of)
        return expression.whole()
    except (_UndecidedError, ValueError):
        return None


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _UndecidedError
        tokens.append(found[1] or found[2] or found[3])
        at = found.end()
    return tokens


class _Expression:
    """An expression that is worked out from left to right, tighter operators first."""

    def __init__(self, tokens: list[str], value_of: Callable[[str], str | None]):
        self._tokens, self._value_of, self._at = tokens, value_of, 0

    def whole(self) -> int:
        value = self._from(0)
        if self._at < len(self._tokens):
            raise _UndecidedError
        return value

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise _UndecidedError
        self._at += 1
        return self._tokens[self._at - 1]

    def _from(self, rank: int) -> int:
        value = self._single()
        while self._at < len(self._tokens) and _RANKS.get(self._tokens[self._at], -1) >= rank:
            sign = self._next()
            # Powers are worked out from the right.
            value = _applied(sign, value, self._from(_RANKS[sign] + (sign != "**")))
        return value

    def _single(self) -> int:
        signed = 1
        token = self._next()
        while token in ("-", "+"):
            signed *= -1 if token == "-" else 1
            token = self._next()
        if token == "(":
            value = self._from(0)
            if self._next() != ")":
                raise _UndecidedError
            return signed * value
        if token.isdecimal():
            return signed * _small(token)
        text = self._value_of(token)
        if text is None or not text.strip().removeprefix("-").isdecimal():
            raise _UndecidedError
        return signed * _small(text.strip())


def _small(digits: str) -> int:
    if len(digits) > len(str(_LARGEST)):
        raise _UndecidedError
    return int(digits)


def _applied(sign: str, left: int, right: int) -> int:
    if sign in ("/", "%") and right == 0:
        raise _UndecidedError
    if sign in ("**", "<<", ">>") and not 0 <= right < _LARGEST.bit_length():
        raise _UndecidedError
    match sign:
        case "+":
            value = left + right
        case "-":
            value = left - right
        case "*":
            value = left * right
        case "/":
            # Shells round towards zero.
            value = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        case "%":
            value = abs(left) % abs(right) * (-1 if left < 0 else 1)
        case "<<":
            value = left << right
        case ">>":
            value = left >> right
        case _:
            value = left**right
    if abs(value) >= _LARGEST:
        raise _UndecidedError
    return value
