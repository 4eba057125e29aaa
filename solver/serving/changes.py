"""The changes of a serving request that may help where it has no plan, or make its plan better."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshwright.costmodels.units import DType
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Reason
from meshwright.solver.problem.choice import SERVING
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import ClosedArrivals, FixedLength, ScheduleArrivals, TraceArrivals
from meshwright.solver.serving.nearest import shares_taken
from meshwright.solver.suggestions import (
    LEAST_SAID,
    RequestChange,
    beside,
    more_devices,
    node_filled,
    restrictions_lifted,
    rounded,
    with_targets,
)

Change = RequestChange[ServingRequest]

RELAXED = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0)
"""Targets that are tried for a better plan, over those of the request."""

ABOVE_REACHED = (1.02, 1.1, 1.25, 1.5)
"""Targets that are tried, over what the nearest layout takes at the load asked for: the promise is to be kept at loads a
percent apart below it too, of which some take more."""

LESS_CONFIDENCE = (0.75, 0.5)
SURE = (0.97, 0.95)
"""Confidences that make a plan sure, the first that of the surest of the trials' candidates. A plan that misses a target more
often than with the first counts as tight."""

LESS_LOAD = (0.9, 0.75, 0.5, 0.25, 0.1)
"""Loads that are tried, over the one asked for, after the one that the reason says all devices keep up with."""

ABOUT = (1.0, 1.1, 1.25, 1.5, 2.0)
"""Numbers of devices that are tried, over those that would keep up with a load if each took an equal part of it."""

ROOM_FOR_OTHERS = 2.0
"""What a target is moved to, over what a request alone takes: requests wait for one another."""

LATE_ALONE = ("p95_ttft", "p95_tpot")
"""Constraints that a request misses even alone."""

Solve = Callable[[ServingRequest], Plan]
"""What answers another request, in bounded work."""

TARGETS = ("p95_ttft_ms", "p95_tpot_ms")
MEMORY = "memory"
LOADS = ("requests_per_s", "concurrency")
"""Constraints that are loads."""

SHORTER = (2, 4, 8)
LOAD_DIGITS = 3

NARROWER = {DType.FP32: (DType.BF16, DType.FP8), DType.BF16: (DType.FP8, DType.FP4), DType.FP16: (DType.FP8, DType.FP4)}
"""Precisions that are tried in turn; of fp8 that is fp4."""


def serving_changes(request: ServingRequest, reason: Reason, solve: Solve) -> Iterator[Sequence[Change]]:
    """Yield ladders of changes, those that cost nothing first; ``solve`` answers another request, in bounded work."""
    yield from restrictions_lifted(request, SERVING)
    # A request that is late alone is late on more nodes and among fewer others, unless it may take longer.
    if reason.constraint in LATE_ALONE:
        yield node_filled(request)
        yield from _moved_targets(request, reason, solve)
    else:
        yield _enough_devices(request, reason)
        if reason.constraint in LOADS:
            yield tuple(_less_load(request, reason))
        if reason.constraint != MEMORY:
            yield tuple(_reached_targets(request))
    if reason.constraint != MEMORY:
        yield tuple(_confident(request, confidence) for confidence in LESS_CONFIDENCE if confidence < request.slo.confidence)
    yield tuple(_narrower(request))
    yield tuple(_shorter(request))


def serving_improvements(request: ServingRequest) -> Iterator[Sequence[Change]]:
    """Yield ladders of changes that may make a plan better: less confidence, a looser target, what takes fewer bytes."""
    yield from restrictions_lifted(request, SERVING)
    targets = {name: value for name in TARGETS if (value := getattr(request.slo, name)) is not None}
    if targets:
        yield tuple(_confident(request, confidence) for confidence in LESS_CONFIDENCE if confidence < request.slo.confidence)
    for name, value in targets.items():
        yield tuple(with_targets(request, {name: rounded(value * factor, up=True)}) for factor in RELAXED)
    yield tuple(_narrower(request))


def is_tight(plan: Plan) -> bool:
    """Return True if a plan misses a target more often than one that counts as sure."""
    figures = plan.predicted
    missed = (figures.chance_ttft_missed, figures.chance_tpot_missed) if figures is not None else ()
    return max((chance or 0.0 for chance in missed), default=0.0) > 1.0 - SURE[0]


def surer_targets(request: ServingRequest) -> tuple[Change, ...]:
    """The ladder of the request with a tight plan whose targets are kept more surely."""
    return tuple(_confident(request, confidence) for confidence in SURE if confidence > request.slo.confidence)


def surer_beside(surer: Change) -> Iterator[Sequence[Change]]:
    """Yield ladders of what may make a sure plan better: restrictions lifted, and what takes fewer bytes."""
    request = surer.request
    for ladder in (*restrictions_lifted(request, SERVING), tuple(_narrower(request))):
        yield tuple(beside(surer, each) for each in ladder)


def reached_by_serving(plan: Plan) -> str:
    """Return the figures of a plan that a change has, in words."""
    figures = plan.predicted
    assert figures is not None, "a feasible serving plan"
    devices = "1 device" if plan.devices == 1 else f"{plan.devices:,} devices"
    parts = [f"{figures.tokens_per_s:,.0f} tokens/s on {devices}"]
    for name, promised_s in (("TTFT", figures.ttft_promised_s), ("TPOT", figures.tpot_promised_s)):
        if promised_s is not None and promised_s > 0.0:
            shown = f"{promised_s:.3g} s" if promised_s >= 1.0 else f"{promised_s * 1e3:.4g} ms"
            parts.append(f"P95 {name} up to {shown}")
    for name, chance in (("TTFT", figures.chance_ttft_missed), ("TPOT", figures.chance_tpot_missed)):
        if chance is not None and chance >= LEAST_SAID:
            parts.append(f"{name} missed in {chance:.1%} of cases")
    return ", ".join(parts)


def _reached_targets(request: ServingRequest) -> Iterator[Change]:
    """The targets moved to what the nearest layout takes at the load asked for; none where no layout keeps up with it, or that
    takes so much longer that nobody would have it (`RELAXED`)."""
    shares = shares_taken(request) or (0.0, 0.0)
    if max(shares) > RELAXED[-1]:
        return
    for above in ABOVE_REACHED:
        moved = {
            name: rounded(getattr(request.slo, name) * share * above, up=True)
            for name, share in zip(TARGETS, shares, strict=True)
            if 1.0 < share * above <= RELAXED[-1]
        }
        if moved:
            yield with_targets(request, moved)


def _moved_targets(request: ServingRequest, reason: Reason, solve: Solve) -> Iterator[Sequence[Change]]:
    """Targets that a request misses even alone, moved to what is reached at the load asked for, and moved until a request alone
    keeps them with room for others; where the load is too much for that, beside more devices or a lower load."""
    reached = tuple(_reached_targets(request))
    yield reached
    moved, left, change = dict[str, float](), reason, with_targets(request, {})
    while left.constraint in LATE_ALONE and f"{left.constraint}_ms" not in moved:
        name, needed = f"{left.constraint}_ms", rounded(left.need * ROOM_FOR_OTHERS, up=True, digits=2)
        moved[name] = max(needed, getattr(request.slo, name) or 0.0)
        change = with_targets(request, moved)
        plan = solve(change.request)
        if plan.reason is None:
            yield () if reached else (change,)
            return
        left = plan.reason
    if left.constraint in LOADS:
        yield tuple(beside(change, more) for more in _enough_devices(change.request, left))
        yield tuple(beside(change, less) for less in _less_load(change.request, left))


def _enough_devices(request: ServingRequest, reason: Reason) -> tuple[Change, ...]:
    """More devices; for a load so many times what all devices keep up with, about so many times as many."""
    if reason.constraint not in LOADS or reason.have <= 0.0:
        return more_devices(request)
    about = request.cluster.groups[0].n_devices * reason.need / reason.have
    return more_devices(request, sizes=[math.ceil(about * factor) for factor in ABOUT])


def _confident(request: ServingRequest, confidence: float) -> Change:
    slo = replace(request.slo, confidence=confidence)
    words = f"slo.confidence {confidence:g} instead of {request.slo.confidence:g}"
    return RequestChange(words, {"slo.confidence": json.dumps(confidence)}, replace(request, slo=slo))


def _narrower(request: ServingRequest) -> Iterator[Change]:
    """Formats of fewer bits: of the cache first, then of products and weights, whose stored format follows."""
    workload = request.workload
    if workload.kv_dtype is not DType.FP8 and workload.precision is not DType.FP8:
        yield _working(request, "a cache in fp8", {"kv_dtype": DType.FP8})
    for precision in NARROWER.get(workload.precision, (DType.FP4,) if workload.precision is DType.FP8 else ()):
        words = f"precision {precision.value} instead of {workload.precision.value}"
        changes: dict[str, Any] = {"precision": precision}
        if workload.weights is not None:
            changes["weights"] = None
        yield _working(request, words, changes)


def _less_load(request: ServingRequest, reason: Reason) -> Iterator[Change]:
    """Fewer requests a second, or fewer clients; a trace or a schedule is what it is."""
    arrivals = request.workload.arrivals
    if isinstance(arrivals, TraceArrivals | ScheduleArrivals):
        return
    closed = isinstance(arrivals, ClosedArrivals)
    name, unit = ("concurrency", "clients") if closed else ("requests_per_s", "requests/s")
    least, asked = 1.0 if closed else 0.0, float(getattr(arrivals, name))
    kept = [reason.have] if reason.constraint == name and 0.0 < reason.have < asked else []
    loads = [rounded(load, up=False, digits=LOAD_DIGITS) for load in (*kept, *(asked * share for share in LESS_LOAD))]
    tried = {float(math.floor(load)) if closed else load for load in loads}
    for load in sorted(tried, reverse=True):
        if not 0.0 < load < asked or (kept and load > max(loads[0], least)):
            continue
        value = int(load) if closed else load
        lower: Mapping[str, Any] = {name: value}
        changed = replace(arrivals, **lower)
        words = f"{value:,g} {unit} instead of {asked:,g}"
        workload = replace(request.workload, arrivals=changed)
        yield RequestChange(
            words,
            {f"workload.arrivals.{name}": json.dumps(value)},
            replace(request, workload=workload),
            is_met=bool(kept) and load == loads[0],
        )


def _shorter(request: ServingRequest) -> Iterator[Change]:
    """Shorter prompts and answers, where their lengths are fixed."""
    workload = request.workload
    for by in SHORTER:
        lengths = {
            name: length.fixed // by
            for name, length in (("prompt_tokens", workload.prompt_tokens), ("output_tokens", workload.output_tokens))
            if isinstance(length, FixedLength) and length.fixed // by >= 1
        }
        if lengths:
            words = " and ".join(f"{name.replace('_', ' ')} {tokens:,}" for name, tokens in lengths.items())
            values = {f"workload.{name}.fixed": json.dumps(tokens) for name, tokens in lengths.items()}
            fixed: Mapping[str, Any] = {name: FixedLength(tokens) for name, tokens in lengths.items()}
            yield RequestChange(words, values, replace(request, workload=replace(workload, **fixed)))


def _working(request: ServingRequest, words: str, changes: Mapping[str, Any]) -> Change:
    values = {f"workload.{name}": json.dumps(value) for name, value in changes.items()}
    return RequestChange(words, values, replace(request, workload=replace(request.workload, **changes)))
