"""A request as workers of one phase see it."""

from __future__ import annotations

from dataclasses import replace

from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import FixedLength, TraceArrivals


def of_prompts(request: ServingRequest) -> ServingRequest:
    """The request as prefill workers see it: each prompt is answered with one token."""
    workload = request.workload
    if isinstance(workload.arrivals, TraceArrivals):
        single = replace(workload.arrivals, output_tokens=(1,) * len(workload.arrivals.times_s))
        return replace(request, workload=replace(workload, arrivals=single))
    return replace(request, workload=replace(workload, output_tokens=FixedLength(1)))


def of_answers(request: ServingRequest) -> ServingRequest:
    """The request as decode workers see it: prompts come whole from the prefill workers, nothing of them is shared."""
    return replace(request, workload=request.workload.without_prefix_cache())
