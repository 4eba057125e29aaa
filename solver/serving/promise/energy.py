"""Joules of an output token: what replicas take under their load, and what no schedule takes less than."""

from __future__ import annotations

from meshwright.costmodels.serving.energy import mean_power_w
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.candidates import Candidate, Measured
from meshwright.solver.serving.promise.evaluation import Evaluator


def energy_per_token_j(measured: Measured, evaluator: Evaluator, *, output_tokens: float | None = None) -> float:
    """Joules of all devices of measured replicas for an output token; ``output_tokens`` of a mean request, the evaluator's own
    unless given.

    A request never takes less work than its bound says: a run of chance requests may.
    """
    candidate = measured.candidate
    request_s = max(measured.request_s, evaluator.least_request_s(candidate))
    request_j = _request_j(candidate, measured.requests_per_s, request_s, evaluator)
    return request_j / (output_tokens or evaluator.output.mean)


def least_energy_per_token_j(
    candidate: Candidate, share: Share, evaluator: Evaluator, *, output_tokens: float | None = None
) -> float:
    """Joules that replicas of a candidate can't be below under their share of a load; in a closed loop the faster the answers
    the less a request waits beside idle devices, and no schedule is faster than the bound of throughput."""
    rate = evaluator.rate_bound(candidate) if evaluator.traffic.is_closed else share.each
    request_j = _request_j(candidate, rate, evaluator.least_request_s(candidate), evaluator)
    return request_j / (output_tokens or evaluator.output.mean)


def _request_j(candidate: Candidate, requests_per_s: float, request_s: float, evaluator: Evaluator) -> float:
    """Joules of a replica's devices for a request, so many of which it answers a second, each ``request_s`` of work for the
    devices of its attention group."""
    engine = candidate.engine
    layout = engine.layout
    device = layout.group.node.device
    # Experts are not repeated: of models with them a little too much is counted.
    answered = engine.query_tokens * layout.answer_copies
    matrix_s = engine.work.request_s(evaluator.demand, device, engine.precision, query_tokens=answered)
    power_w = mean_power_w(
        device,
        working=requests_per_s / layout.schedulers * request_s,
        computing=requests_per_s * matrix_s / layout.devices,
    )
    return layout.devices * power_w / requests_per_s
