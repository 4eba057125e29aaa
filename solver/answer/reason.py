"""Why a request has no plan, as a part of the answer."""

from __future__ import annotations

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
