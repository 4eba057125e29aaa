"""The load of serving workers: what they keep up with, and what requests wait."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from meshwright.solver.answer.layouts import EngineLoad
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.problem.request import Length, ServingRequest, ServingWorkload
from meshwright.solver.problem.serving_load import ClosedArrivals, EmpiricalLength, FixedLength, LognormalLength, TraceArrivals
from meshwright.solver.verify.numbers import at_most
from meshwright.solver.verify.violation import Rule, Violation


def load_violations(load: EngineLoad, predicted: Predicted, request: ServingRequest) -> Iterator[Violation]:
    """Load below what the workers keep up with, and percentiles within the targets."""
    slo = request.slo
    # Clients of a closed loop wait for answers, so they may keep an engine full.
    may_be_full = isinstance(request.workload.arrivals, ClosedArrivals)
    if not (0.0 <= load.utilisation < 1.0 or (may_be_full and load.utilisation == 1.0)):
        given = f"{load.utilisation}, a stable queue is below 1"
        yield Violation(Rule.UTILISATION, "plan.serving.utilisation", given)
    if load.mean_batch > load.max_num_seqs:
        given = f"{load.mean_batch} requests at once, max_num_seqs is {load.max_num_seqs}"
        yield Violation(Rule.UTILISATION, "plan.serving.mean_batch", given)
    for name, value, limit_ms in (
        ("ttft_p95_s", predicted.ttft_p95_s, slo.p95_ttft_ms),
        ("tpot_p95_s", predicted.tpot_p95_s, slo.p95_tpot_ms),
    ):
        assert value is not None, "answer_violations asks for both percentiles"
        if limit_ms is not None and not at_most(value * 1e3, limit_ms):
            yield Violation(Rule.SLO, f"plan.predicted.{name}", f"{value * 1e3} ms, the SLO allows {limit_ms} ms")


def mean_lengths(workload: ServingWorkload) -> tuple[float, float]:
    """Mean prompt and output in tokens."""
    if isinstance(workload.arrivals, TraceArrivals):
        return fmean(workload.arrivals.prompt_tokens), fmean(workload.arrivals.output_tokens)
    assert workload.prompt_tokens is not None and workload.output_tokens is not None
    return _mean(workload.prompt_tokens), _mean(workload.output_tokens)


def _mean(length: Length) -> float:
    match length:
        case FixedLength():
            return float(length.fixed)
        case EmpiricalLength():
            return fmean(length.empirical)
        case LognormalLength():
            return length.mean
