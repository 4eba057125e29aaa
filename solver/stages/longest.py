"""Branch and bound over the longest stage of a pipeline: the outer loop that both partitioners share.

The objective of a step is ``(m - 1) * longest + tail`` (see `objective_s`). Limiting the longest stage makes the rest a
shortest path, so a partitioner only answers "what is the least tail if no stage takes more than ``limit_s``?". That
tail never falls when the limit falls; hence a range of limits is closed by one answer at its upper end, and no list of
candidate times, and no gap between tried candidates, is needed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

TIE = 1e-12
"""Objectives closer than this, relatively, count as equal: float sums in another order differ by about 1e-15 a stage."""

Choice_co = TypeVar("Choice_co", covariant=True)


@dataclass(frozen=True, slots=True)
class FoundPartition(Generic[Choice_co]):
    """A partition with the least tail under a limit: its longest stage, its tail, and how to build it."""

    longest_s: float
    tail_s: float
    choice: Choice_co


class SolveWithin(Protocol[Choice_co]):
    """Finds the least tail among partitions without a stage longer than ``limit_s``."""

    def __call__(self, limit_s: float, below_s: float) -> FoundPartition[Choice_co] | None:
        """The partition of least tail, or None when no tail is less than ``below_s``."""
        ...


@dataclass(frozen=True, slots=True)
class Best(Generic[Choice_co]):
    """The optimum over all limits, and how many limits were tried."""

    objective_s: float
    choice: Choice_co
    limits_tried: int


def objective_s(
    times_s: Sequence[float],
    extras_s: Sequence[float],
    n_microbatches: int,
    *,
    waiting: float = 1.0,
    hidden_s: Sequence[float] | None = None,
) -> float:
    """Time of a step of ``n_microbatches`` micro-batches, in seconds.

    1F1B: ``sum t + (m - 1) max t + max_i (d_i - sum_{j<i} t_j)`` (Mist; design section 2, level 3), computed in the equal form
    ``(m - 1) max t + max_i (d_i + sum_{j>=i} t_j)``: the second term is called the tail. A schedule that waits ``waiting``
    times as long (`costmodels.pipeline.waiting_ratio`) staggers its stages that much less or more: ``(m - waiting) max t +
    max_i (d_i + waiting sum_{j>=i} t_j)``. What a stage hides beside the compute of other micro-batches (``hidden_s``, nothing
    by default) is still on a micro-batch's way through the pipeline: in the tail it adds to t.
    """
    tail_s = 0.0
    for time_s, extra_s, beside_s in zip(times_s, extras_s, hidden_s or [0.0] * len(times_s), strict=True):
        tail_s = max(tail_s, extra_s) + waiting * (time_s + beside_s)
    return (n_microbatches - waiting) * max(times_s) + tail_s


def least_objective(
    solve_within: SolveWithin[Choice_co], n_microbatches: int, *, below_s: float = math.inf, waiting: float = 1.0
) -> Best[Choice_co] | None:
    """The partition of least objective, exact up to `TIE`; None when none is less than ``below_s``.

    ``waiting`` as in `objective_s`: the longest stage counts ``n_microbatches - waiting`` times beside the tail.

    Ranges of the longest stage are taken in the order of their lower bounds; of equal objectives the first found stays,
    so the answer depends on nothing but the input.
    """
    weight = n_microbatches - waiting
    best: Best[Choice_co] | None = None
    best_s = below_s
    tried = 0
    # (lower bound, order of entry, longest stage above this, and at most this, least tail there); -1: zero is allowed
    ranges: list[tuple[float, int, float, float, float]] = [(0.0, 0, -1.0, math.inf, 0.0)]
    entered = 1
    while ranges:
        lower_s, _, above_s, limit_s, tail_s = heapq.heappop(ranges)
        beat_s = best_s * (1.0 - TIE)
        if lower_s >= beat_s:
            break
        if weight:
            limit_s = min(limit_s, (beat_s - tail_s) / weight)
        tried += 1
        found = solve_within(limit_s, beat_s - weight * max(above_s, 0.0))
        if found is None:
            continue
        found_s = weight * found.longest_s + found.tail_s
        if found_s < beat_s:
            best, best_s = Best(found_s, found.choice, tried), found_s
        shorter_s = math.nextafter(found.longest_s, -math.inf)
        for low_s, high_s in _halves(above_s, shorter_s):
            bound_s = weight * max(low_s, 0.0) + found.tail_s
            heapq.heappush(ranges, (bound_s, entered, low_s, high_s, found.tail_s))
            entered += 1
    return None if best is None else Best(best.objective_s, best.choice, tried)


def _halves(above_s: float, limit_s: float) -> list[tuple[float, float]]:
    """Splits the half-open range (above_s, limit_s] in two, or gives it back when floats leave nothing between."""
    if limit_s < 0.0 or limit_s <= above_s:
        return []
    low_s = max(above_s, 0.0)
    middle_s = low_s + (limit_s - low_s) / 2
    if not low_s < middle_s < limit_s:
        return [(above_s, limit_s)]
    return [(above_s, middle_s), (middle_s, limit_s)]
