"""The objective of a serving plan, and the claims of its certificate."""

from __future__ import annotations

from meshwright.costmodels.serving.step_time import mean_power_w
from meshwright.solver.answer.predicted import Certificate, Status
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import ClosedArrivals
from meshwright.solver.serving.engines.layouts import SPACE
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.candidates import Candidate, Measured
from meshwright.solver.serving.promise.evaluation import REQUESTS, Evaluator
from meshwright.solver.serving.promise.question import Found

UNITS = {
    Objective.DEVICES: "devices",
    Objective.COST: "USD/h",
    Objective.THROUGHPUT: "s/request",
    Objective.ENERGY: "J/token",
}

_COUNTS = (
    f"{SPACE}; a layout counts when the 95% upper confidence limits of its simulated P95 ({REQUESTS} requests, one seed), with "
    "the error of simulated times at slo.confidence, meet the targets. Others are refused by memory, by a request alone, by a "
    "throughput bound of any schedule, or by simulation; "
)

PROOF = _COUNTS + "a layout refused at a rate is taken to be refused at higher rates"

GOODPUT_PROOF = _COUNTS + (
    "the rate is the highest of a grid of 1% at which, and at all of its rates below, they are met (simulated down to half)"
)

ANSWERS_PROOF = _COUNTS + (
    "for each number of replicas the rate of answers has a bound, of the work of batches of its clients, and no bound above "
    "this plan is left"
)

ENERGY_PROOF = _COUNTS + (
    "for each number of replicas the energy has a bound of idle power and least work, and no bound below this plan is left"
)

DRAFTED = "; with drafted tokens pp is 1 and requests start when the cache has room for all their tokens"
"""The words of a certificate on what speculative decoding leaves of the space."""


def objective_of(request: ServingRequest, found: Found, evaluator: Evaluator) -> float:
    """The figure that the request's objective minimises."""
    if request.objective is Objective.THROUGHPUT:
        return 1.0 / (found.requests_per_s if evaluator.traffic.is_closed else found.load)
    if request.objective is Objective.COST:
        return found.devices * (found.engine.layout.group.node.device.price_per_hour or 0.0)
    if request.objective is Objective.ENERGY:
        return energy_per_token_j(found.measured, evaluator)
    return float(found.devices)


def searched_certificate(
    request: ServingRequest, found: Found, evaluator: Evaluator, *, bound: float, space: str
) -> Certificate:
    """Return the certificate of a search of a space: optimal when its bound meets the objective."""
    return bounded_certificate(request, objective_of(request, found, evaluator), bound, proof(request, space))


def bounded_certificate(request: ServingRequest, objective: float, bound: float, proof: str) -> Certificate:
    """Return the certificate of an objective and its bound: optimal where they meet."""
    bound = min(bound, objective)
    gap = (objective - bound) / objective
    status = Status.OPTIMAL if gap == 0.0 else Status.FEASIBLE
    return Certificate(status, objective, bound, gap, UNITS[request.objective], proof)


def proof(request: ServingRequest, space: str) -> str:
    """Return the certificate's words on the space and on its proof; ``space`` is what the request adds or leaves out."""
    goodput = ANSWERS_PROOF if isinstance(request.workload.arrivals, ClosedArrivals) else GOODPUT_PROOF
    said = {Objective.THROUGHPUT: goodput, Objective.ENERGY: ENERGY_PROOF}.get(request.objective, PROOF)
    return said + space if request.workload.speculation is None else said + DRAFTED + space


def predicted_certificate(request: ServingRequest, found: Found, evaluator: Evaluator) -> Certificate:
    """Return the certificate of a prediction of a given plan: that it keeps the promise, nothing about others."""
    return Certificate(
        Status.FEASIBLE, objective_of(request, found, evaluator), None, None, UNITS[request.objective], "this plan only"
    )


# Joules of an output token: what replicas take under their load, and what no schedule takes less than.


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
