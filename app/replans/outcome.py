"""The outcome of a plan that was made again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

SAME_VALUE = 1e-9
"""Relative difference below which two objectives are one: what is left of rounding in doubles."""


class Outcome(StrEnum):
    """The new plan compared with the old one; the first value is not yet known."""

    WAITING = "waiting"
    BETTER = "better"
    WORSE = "worse"
    UNCHANGED = "unchanged"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class PlanValue:
    """The value by which a plan is compared: its objective (smaller is better), or why there is no plan."""

    feasible: bool
    objective: float | None
    unit: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Compared:
    """The outcome, and why, in words."""

    outcome: Outcome
    reason: str
    old_value: float | None
    new_value: float | None


@dataclass(frozen=True, slots=True)
class SwitchCost:
    """The data that going from the old plan to the new one moves.

    moved_bytes     bytes that devices receive
    storage_bytes   those of them that no device holds any more: they come from a checkpoint
    least_s         the least time that the links take
    """

    moved_bytes: int
    storage_bytes: int
    least_s: float


def plan_value(plan_text: str) -> PlanValue:
    """Return the value by which the plan in a JSON text is compared."""
    plan = json.loads(plan_text)
    certificate, reason = plan["certificate"], plan["reason"]
    return PlanValue(plan["feasible"], certificate["objective"], certificate["unit"], reason["message"] if reason else None)


def compare_values(old: PlanValue | None, new: PlanValue) -> Compared:
    """Compare a new plan with the old one; without an old one that was feasible, a feasible one is better."""
    old_value = old.objective if old else None
    if not new.feasible:
        return Compared(Outcome.INFEASIBLE, new.reason or "nothing fits", old_value, None)
    if old is None or not old.feasible or old_value is None or new.objective is None:
        return Compared(Outcome.BETTER, "there was no feasible plan", old_value, new.objective)
    change = (new.objective - old_value) / old_value if old_value else new.objective - old_value
    if abs(change) <= SAME_VALUE:
        return Compared(Outcome.UNCHANGED, "the objective is the same", old_value, new.objective)
    said = f"{old_value:.6g} -> {new.objective:.6g} {new.unit} ({change:+.2%}; smaller is better)"
    return Compared(Outcome.BETTER if change < 0 else Outcome.WORSE, said, old_value, new.objective)
