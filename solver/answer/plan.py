"""Plan: the answer to a request: what was found of it, and the layout of the devices.

A plan is self-contained: a reader needs nothing but the plan and its request to check it, launch it or compare it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.solver.answer.frontier import FrontierPoint, Interactivity
from meshwright.solver.answer.layouts import Layout
from meshwright.solver.answer.predicted import (
    UNFINISHED_SEARCH,
    CalibrationUse,
    Certificate,
    Equals,
    Predicted,
    Reason,
    RunnerUp,
    SearchStats,
    Suggestion,
)
from meshwright.solver.problem.request import PlanRequest

PLAN_SCHEMA = "meshwright.plan/1"


@dataclass(frozen=True)
class Plan:
    """The answer. An infeasible one says its ``reason``; its ``layout`` is None but for a training plan that was given and
    whose figures were predicted, which then exceeds the limit that the reason names.

    The document of a plan is flat (`solver.answer.document`).
    """

    kind: Literal["training", "serving"]
    feasible: bool
    certificate: Certificate
    devices: int
    search: SearchStats
    calibration: tuple[CalibrationUse, ...]
    model: str = ""
    digest: str = ""
    predicted: Predicted | None = None
    layout: Layout | None = None
    runners_up: tuple[RunnerUp, ...] = ()
    equals: Equals | None = None
    frontier: tuple[FrontierPoint, ...] = ()
    interactivity: Interactivity | None = None
    reason: Reason | None = None
    suggestions: tuple[Suggestion, ...] = ()
    notes: tuple[str, ...] = ()
    schema: str = PLAN_SCHEMA

    @property
    def is_decided(self) -> bool:
        """True if the answer would be the same with more time to search, as far as yes or no goes."""
        return self.reason is None or self.reason.constraint != UNFINISHED_SEARCH


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """A request and the plan that answers it: what a plan document holds."""

    plan: Plan
    request: PlanRequest
