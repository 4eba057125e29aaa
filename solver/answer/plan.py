"""Plan: the answer to a request: what was found of it, and the layout of the devices.

A plan is self-contained: a reader needs nothing but the plan and its request to check it, launch it or compare it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.costmodels.units import STRICT_RECORD, Joules, PerMillionTokens, PerSecond
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
from meshwright.solver.answer.stage import Axes
from meshwright.solver.problem.request import PlanRequest


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A plan that no other beats in every respect. Of a training plan, ``memory_headroom_bytes`` is what its fullest device has
    left; figures that are not known are None."""

    __pydantic_config__ = STRICT_RECORD

    summary: str
    devices: int
    tokens_per_s: PerSecond
    peak_memory_bytes: float
    memory_headroom_bytes: float | None = None
    cost_per_million_tokens: PerMillionTokens | None = None
    energy_per_step_j: Joules | None = None


@dataclass(frozen=True, slots=True)
class PromptWorkers:
    """Prefill workers of two pools: node group, degrees of one (dp 1), their number, and tokens in a step."""

    __pydantic_config__ = STRICT_RECORD

    group: str
    axes: Axes
    workers: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True)
class InteractivityPoint:
    """A replica in steady state, or two pools: its places are never empty. No queue and no percentile is in its figures.

    axes     degrees of one replica (dp 1) on devices of node group ``group``; of pools one of ``workers`` decode workers
    devices  of the replica, or of both pools
    batch    sequences that run at once, all attention groups together; ``max_num_seqs`` is of each group
    tokens_per_s_per_device, tokens_per_s_per_user  output tokens; a user's are the inverse of the mean time per output token
    """

    __pydantic_config__ = STRICT_RECORD

    summary: str
    group: str
    axes: Axes
    devices: int
    batch: float
    max_num_seqs: int
    max_num_batched_tokens: int
    tokens_per_s_per_device: PerSecond
    tokens_per_s_per_user: PerSecond
    workers: int = 1
    prefill: PromptWorkers | None = None


@dataclass(frozen=True, slots=True)
class Interactivity:
    """Throughput of a device against tokens per second of a user: steady states of workers that do prefill and decode, and of
    pools where the request allows them, which no other beats in both, most throughput first.

    The plan itself beside them: its output tokens per second and device at its load, and those of a user at its mean batch.
    """

    __pydantic_config__ = STRICT_RECORD

    points: tuple[InteractivityPoint, ...]
    plan_tokens_per_s_per_device: PerSecond
    plan_tokens_per_s_per_user: PerSecond


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
