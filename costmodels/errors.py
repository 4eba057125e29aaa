"""Errors of Meshwright, one tree, drawn once; and the known name nearest to one that a user typed, for remedies.

MeshwrightError
├── InvalidInputError        what the user gave can't be used (HTTP 4xx, exit code 2)
│   ├── ModelError           a model file or graph
│   ├── ClusterError         a cluster, node or device
│   ├── WorkloadError        a workload, SLO, objective or search option
│   ├── PlanFileError        a stored or edited plan
│   └── ExportError          a plan that a launcher can't start
├── InfeasibleError          the answer is no: nothing in the declared space fits (exit code 1)
└── PlanRejectedError        the independent checker refused a plan of our own (exit code 3)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MeshwrightError(Exception):
    """Base of every error that Meshwright raises on purpose."""


class InvalidInputError(MeshwrightError, ValueError):
    """Bad input: says what was given, what is allowed and what to do.

    Being a ValueError lets Pydantic report it at the field it belongs to.
    """

    def __init__(self, problem: str, *, given: object = None, allowed: str | None = None, remedy: str | None = None):
        self.problem = problem
        self.given = given
        self.allowed = allowed
        self.remedy = remedy
        parts = [problem]
        if given is not None:
            parts.append(f"given: {_short(given)}")
        if allowed is not None:
            parts.append(f"allowed: {allowed}")
        if remedy is not None:
            parts.append(f"what to do: {remedy}")
        super().__init__("; ".join(parts))


class ModelError(InvalidInputError):
    """A model configuration or model graph that can't be used."""


class ClusterError(InvalidInputError):
    """A cluster, node type or device that can't be used."""


class WorkloadError(InvalidInputError):
    """A workload, SLO, objective or search option that can't be used."""


class PlanFileError(InvalidInputError):
    """A plan document that can't be read or does not belong to the request."""


class ExportError(InvalidInputError):
    """A plan that the launcher it is exported to can't start."""


class InfeasibleError(MeshwrightError):
    """Nothing in the declared space satisfies the constraints."""


class PlanRejectedError(MeshwrightError):
    """The independent checker refused a plan that the solver made: a defect of Meshwright, never of the request."""


def _short(value: object, limit: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


LONGEST_NAME = 100
"""Characters of a name that are compared: difflib's time grows with the square of the length."""


def nearest_name(given: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like the given one, letter case aside; None where none is much like it."""
    by_folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(given[:LONGEST_NAME].casefold(), by_folded, n=1)
    return by_folded[close[0]] if close else None


def did_you_mean(given: str, known: Iterable[str], *, otherwise: str) -> str:
    """Return the remedy of an error about an unknown name: the nearest known one, or what to do where none is near."""
    near = nearest_name(given, known)
    return otherwise if near is None else f"did you mean {near!r}?"


NAMES_SHOWN = 8
"""Names of a long list that an error shows: two lines of a terminal."""


def names_like(given: str, known: Iterable[str]) -> str:
    """Return known names for an error: all where they are few, else those most like the given one, and how many more."""
    names = {name.casefold(): name for name in known}
    if len(names) <= NAMES_SHOWN:
        return ", ".join(names.values())
    shown = difflib.get_close_matches(given[:LONGEST_NAME].casefold(), names, n=NAMES_SHOWN, cutoff=0)
    return f"{', '.join(names[each] for each in shown)} and {len(names) - len(shown)} more"
