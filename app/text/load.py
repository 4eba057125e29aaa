"""The load at which a serving plan's figures are, in words."""

from __future__ import annotations

from statistics import fmean

from meshwright.app.text.figures import significant
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import GIVEN_PLAN
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import PlanRequest, ServingRequest, ServingWorkload, Slo
from meshwright.solver.problem.serving_load import ClosedArrivals, EmpiricalLength, FixedLength, LognormalLength, TraceArrivals


def load_in_words(plan: Plan, request: PlanRequest) -> str | None:
    """Return the sentence that says at which rate the figures of a plan for throughput are, and of what it is the highest.

    None for other objectives, whose figures are at the rate that was asked, for clients who wait for answers, and
    for plans that were given.
    """
    if not isinstance(request, ServingRequest) or request.objective is not Objective.THROUGHPUT or plan.predicted is None:
        return None
    if plan.certificate.space == GIVEN_PLAN:
        return None
    arrivals = request.workload.arrivals
    if isinstance(arrivals, ClosedArrivals):
        return None
    rate = significant(plan.predicted.tokens_per_s / mean_output(request.workload))
    asked = significant(arrivals.requests_per_s)
    if request.slo == Slo(confidence=request.slo.confidence):
        return (
            f"These figures are at {rate} requests/s, the most that the devices keep up with, where {asked} were named: no "
            "target of latency limits the rate. Give targets, or ask for the fewest devices (objective devices)."
        )
    return f"These figures are at {rate} requests/s, the most at which the targets are kept, where {asked} were named."


def mean_output(work: ServingWorkload) -> float:
    """Tokens of an answer, in the mean."""
    if isinstance(work.arrivals, TraceArrivals):
        return fmean(work.arrivals.output_tokens)
    match work.output_tokens:
        case FixedLength(tokens):
            return float(tokens)
        case LognormalLength(mean):
            return mean
        case EmpiricalLength(counts):
            return fmean(counts)
        case None:
            raise ValueError("a load that is no trace has lengths")
