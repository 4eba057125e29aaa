"""The load of serving workers: what they keep up with, and what requests wait."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from meshwright.costmodels.serving.latency_law import ServingLaw, latency_law, learned_latencies
from meshwright.solver.answer.layouts import EngineLoad
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.problem.request import Length, ServingRequest, ServingWorkload
from meshwright.solver.problem.serving_load import ClosedArrivals, EmpiricalLength, FixedLength, LognormalLength, TraceArrivals
from meshwright.solver.verify.numbers import at_most
from meshwright.solver.verify.violation import Rule, Violation


def load_violations(
    load: EngineLoad, predicted: Predicted, request: ServingRequest, *, pools: bool = False
) -> Iterator[Violation]:
    """Load below what the workers keep up with, and percentiles within the targets."""
    # Clients of a closed loop wait for answers, so they may keep an engine full.
    may_be_full = isinstance(request.workload.arrivals, ClosedArrivals)
    if not (0.0 <= load.utilisation < 1.0 or (may_be_full and load.utilisation == 1.0)):
        given = f"{load.utilisation}, a stable queue is below 1"
        yield Violation(Rule.UTILISATION, "plan.serving.utilisation", given)
    if load.mean_batch > load.max_num_seqs:
        given = f"{load.mean_batch} requests at once, max_num_seqs is {load.max_num_seqs}"
        yield Violation(Rule.UTILISATION, "plan.serving.mean_batch", given)
    yield from promise_violations(predicted, request, pools=pools)


def promise_violations(predicted: Predicted, request: ServingRequest, *, pools: bool) -> Iterator[Violation]:
    """Percentiles within the targets with the confidence of the SLO, by the law of the engine's latencies, which is found and
    applied here anew. A plan of versions that promised nothing states medians alone."""
    slo, law = request.slo, law_of(request, pools=pools)
    for name, median_s, promised_s, time_law, limit_ms in (
        ("ttft", predicted.ttft_p95_s, predicted.ttft_promised_s, law.ttft, slo.p95_ttft_ms),
        ("tpot", predicted.tpot_p95_s, predicted.tpot_promised_s, law.tpot, slo.p95_tpot_ms),
    ):
        assert median_s is not None, "answer_violations asks for both percentiles"
        bound_s, where = median_s, f"plan.predicted.{name}_p95_s"
        if promised_s is not None:
            # Medians are (simulated + outside) x scale, and what is promised counts from no less than what was simulated.
            least_s = median_s * time_law.factor(slo.confidence) / time_law.scale
            bound_s, where = promised_s, f"plan.predicted.{name}_promised_s"
            if not at_most(least_s, promised_s):
                given = f"{promised_s} s; {slo.confidence} of measured times with this median stay below {least_s} s"
                yield Violation(Rule.SLO, where, given)
        if limit_ms is not None and not at_most(bound_s * 1e3, limit_ms):
            yield Violation(Rule.SLO, where, f"{bound_s * 1e3} ms, the SLO allows {limit_ms} ms")


def law_of(request: ServingRequest, *, pools: bool) -> ServingLaw:
    """Return the law of the latencies of a request's engine."""
    devices = [group.node.device for group in request.cluster.groups]
    learned = learned_latencies(request.calibrations)
    return latency_law(request.search.engine, pools=pools, devices=devices, learned=learned)


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
