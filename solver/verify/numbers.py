"""Comparing floats, and the rule that no figure of a plan is NaN, infinite or negative."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

from meshwright.solver.answer.document import record_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.verify.violation import Rule, Violation

RELATIVE = 1e-9
"""Agreement asked of two floats that are equal by definition. Adding n terms in another order changes a sum by at most
n x 2**-53 of it, that is 1e-11 for the 100,000 layers a graph may have; anything beyond 1e-9 is another formula."""


MAY_BE_NEGATIVE = (".learned_bytes", ".fragmentation_bytes")
"""Corrections by runs, which may have taken less than was counted."""


def agrees(value: float, expected: float) -> bool:
    """Return True if two figures are equal but for rounding."""
    return abs(value - expected) <= RELATIVE * max(abs(value), abs(expected))


def at_most(value: float, limit: float) -> bool:
    """Return True if ``value <= limit`` but for rounding."""
    return value <= limit + RELATIVE * max(abs(value), abs(limit))


def number_violations(plan: Plan) -> Iterator[Violation]:
    """Every figure of the plan that is NaN, infinite or negative (a bubble of rounding noise below zero aside)."""
    step_s = None if plan.predicted is None else plan.predicted.step_time_s
    noise = RELATIVE * (step_s or 0.0)
    for where, value in _figures(record_of(plan), "plan"):
        if not math.isfinite(value):
            yield Violation(Rule.NUMBERS, where, f"{value} is not a finite number")
        elif value < (-noise if where.startswith("plan.breakdown.") else 0.0) and not where.endswith(MAY_BE_NEGATIVE):
            yield Violation(Rule.NUMBERS, where, f"{value} is negative")


def _figures(value: object, where: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, int | float):
        yield where, float(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _figures(getattr(value, field.name), f"{where}.{field.name}")
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _figures(item, f"{where}[{index}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _figures(item, f"{where}.{key}")
