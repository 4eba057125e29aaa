"""Why a request has no plan, and what would help, as parts of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.costmodels.units import STRICT_RECORD

UNFINISHED_SEARCH = "search"
"""Constraint of the reason of a search that was stopped before it found a plan or proved that there is none."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a request is infeasible: the tightest constraint, in numbers, and what would help."""

    __pydantic_config__ = STRICT_RECORD

    constraint: str
    need: float
    have: float
    unit: str
    message: str
    stage: int | None = None
    remedies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change of the request, and what its plan was found to reach.

    change    in words
    set       fields of the resolved request by dotted path, and their new values as JSON
    reaches   figures of the plan that was found, in words
    objective, unit   of that plan; running the changed request finds one that is no worse
    """

    __pydantic_config__ = STRICT_RECORD

    change: str
    set: Mapping[str, str]
    reaches: str
    objective: float
    unit: str


def unfinished_search(considered: int, *, looked_for: str, remedies: tuple[str, ...]) -> Reason:
    """The reason of a search that was stopped after ``considered`` candidates with its question open."""
    return Reason(
        constraint=UNFINISHED_SEARCH,
        need=float(considered + 1),
        have=float(considered),
        unit="candidates",
        message=(
            f"undecided: the limit was reached after {considered:,} candidates, and the search has not found {looked_for} yet; "
            "whether there is one is not known"
        ),
        remedies=remedies,
    )
