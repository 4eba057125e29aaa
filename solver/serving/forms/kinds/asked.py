"""The request of each of several kinds of workers: the whole request with its share of the arrivals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.problem.request import Arrivals, ServingRequest
from meshwright.solver.problem.serving_load import (
    ClosedArrivals,
    GammaArrivals,
    PoissonArrivals,
    ScheduleArrivals,
    TraceArrivals,
)


def kind_requests(request: ServingRequest, shares: Sequence[float], loads: Sequence[float]) -> list[ServingRequest]:
    """The request of each kind of workers that takes a share of the arrivals, ``loads`` requests per second.

    Requests are drawn at random by share: of Poisson arrivals each kind sees Poisson arrivals, of bursts fewer, squared
    variation ``1 + (cv^2 - 1) share``; of a schedule each its share at any time. A trace is dealt out in weighted turn,
    whatever ``loads`` say.

    Raises WorkloadError for clients in a closed loop, who are no arrivals to share.
    """
    workload = request.workload
    # Each kind by itself is a plan of one.
    search = replace(request.search, worker_kinds=1)
    shared = _shared(workload.arrivals, shares, loads)
    return [replace(request, workload=replace(workload, arrivals=each), search=search) for each in shared]


def _shared(arrivals: Arrivals, shares: Sequence[float], loads: Sequence[float]) -> list[Arrivals]:
    match arrivals:
        case PoissonArrivals():
            return [replace(arrivals, requests_per_s=load) for load in loads]
        case GammaArrivals():
            squared = [1.0 + (arrivals.cv**2 - 1.0) * share for share in shares]
            return [replace(arrivals, requests_per_s=load, cv=math.sqrt(s)) for load, s in zip(loads, squared, strict=True)]
        case ScheduleArrivals():
            return [arrivals.at(load) for load in loads]
        case TraceArrivals():
            turns = weighted_turns(shares, len(arrivals.times_s))
            return [_part_of(arrivals, [i for i, kind in enumerate(turns) if kind == own]) for own in range(len(shares))]
        case ClosedArrivals():
            raise WorkloadError(
                "clients in a closed loop are not shared by several kinds of workers",
                given=arrivals.process,
                allowed="poisson, gamma, trace; or search.worker_kinds 1",
            )


def weighted_turns(shares: Sequence[float], requests: int) -> list[int]:
    """Return, for each request, the kind that takes it: the one that its share of those so far leaves furthest behind, of
    equals the first."""
    taken, turns = [0] * len(shares), []
    for count in range(1, requests + 1):
        behind = [share * count - had for share, had in zip(shares, taken, strict=True)]
        kind = behind.index(max(behind))
        taken[kind] += 1
        turns.append(kind)
    return turns


def _part_of(trace: TraceArrivals, requests: list[int]) -> TraceArrivals:
    if len(requests) < 2:
        raise WorkloadError(
            "the trace is too short for a kind of workers that takes so few of its requests",
            given=f"{len(requests)} of {len(trace.times_s)} requests",
            remedy="give a longer trace",
        )
    columns = (trace.times_s, trace.prompt_tokens, trace.output_tokens)
    times_s, prompts, outputs = (tuple(column[i] for i in requests) for column in columns)
    cached = tuple(trace.cached_tokens[i] for i in requests) if trace.cached_tokens else ()
    return replace(trace, times_s=times_s, prompt_tokens=prompts, output_tokens=outputs, cached_tokens=cached)  # type: ignore[arg-type]
