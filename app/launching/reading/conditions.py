"""Conditions of a shell script that can be told from what it sets: branches are then taken, or left out, as a shell does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.app.base.digits import is_digits

TESTS = ("[", "[[", "test")
_CLOSED_BY = {"[": "]", "[[": "]]"}
_UNTOLD = set("$`*?[\\")
"""Marks of what only a shell can tell: variables that nothing sets, commands, patterns."""
_COMPARED = {"-eq": (0,), "-ne": (-1, 1), "-lt": (-1,), "-le": (-1, 0), "-gt": (1,), "-ge": (0, 1)}
"""Comparisons by the signs of a difference for which they hold."""

Truth = bool | None
"""True or False where it is known."""


def truth_of(words: Sequence[str]) -> Truth:
    """Return whether a command succeeds: a test of words and integers, ``true`` or ``false``; None of all else."""
    if not words:
        return None
    if words[0] == "!":
        return _negated(truth_of(words[1:]))
    if words[0] in ("true", "false"):
        return words[0] == "true"
    if words[0] not in TESTS:
        return None
    closed_by = _CLOSED_BY.get(words[0])
    if closed_by is None:
        return _tested(words[1:])
    return _tested(words[1:-1]) if words[-1] == closed_by else None


def joined(first: Truth, operator: str, second: Truth) -> Truth:
    """Return what two conditions say together, by ``&&`` or ``||``; of two commands in a row the second counts."""
    if operator not in ("&&", "||"):
        return second
    decides = operator == "||"
    if decides in (first, second):
        return decides
    return None if None in (first, second) else not decides


@dataclass(slots=True)
class Block:
    """What stands between ``if`` and ``fi``, or in another block, of which nothing is known.

    taken      whether the branch that is read is taken
    reads      True while a condition is read
    """

    taken: Truth = None
    reads: bool = False
    _before: Truth = False
    _condition: Truth = None
    _operator: str = ""

    @classmethod
    def of_if(cls) -> Block:
        """``if``: its condition follows."""
        return cls(taken=True, reads=True)

    def asks_again(self) -> None:
        """``elif``: another condition follows."""
        self.turns()
        self.reads, self._condition, self._operator = True, None, ""

    def tests(self, truth: Truth, operator: str) -> None:
        """One command of the condition, and the operator behind it."""
        self._condition, self._operator = joined(self._condition, self._operator, truth), operator

    def begins(self) -> None:
        """``then``: the branch of the condition."""
        self.reads, self.taken = False, self._of_rest(self._condition)

    def turns(self) -> None:
        """``else``: what is left."""
        self._before = joined(self._before, "||", self.taken)
        self.taken = self._of_rest(True)

    def _of_rest(self, condition: Truth) -> Truth:
        return joined(_negated(self._before), "&&", condition)


def _negated(truth: Truth) -> Truth:
    return None if truth is None else not truth


def _tested(words: Sequence[str]) -> Truth:
    if words and words[0] == "!":
        return _negated(_tested(words[1:]))
    if any(_UNTOLD & set(word) for word in words):
        return None
    match words:
        case [word]:
            return word != ""
        case ["-z", word]:
            return word == ""
        case ["-n", word]:
            return word != ""
        case [first, "=" | "==", second]:
            return first == second
        case [first, "!=", second]:
            return first != second
        case [first, operator, second] if operator in _COMPARED and _is_integer(first) and _is_integer(second):
            difference = int(first) - int(second)
            return (difference > 0) - (difference < 0) in _COMPARED[operator]
    return None


def _is_integer(word: str) -> bool:
    return is_digits(word.removeprefix("-"))
