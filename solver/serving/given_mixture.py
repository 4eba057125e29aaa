"""A plan of several kinds of workers as it was given: predicted anew, and each kind as what it is asked."""

from __future__ import annotations

import math

from costmodels.errors import PlanFileError
from solver.choices import Objective
from solver.plan import Certificate, Plan, SearchStats, Status, WorkerKind
from solver.reason import Reason
from solver.request import PlanRequest, ServingWorkload
from solver.serving.answer import infeasible_plan
from solver.serving.certificates import UNITS
from solver.serving.evaluation import Candidate, Evaluator
from solver.serving.kinds import kind_requests
from solver.serving.mixture_answer import KindMeasured, mixture_objective, mixture_plan
from solver.serving.prediction import given_candidate
from solver.serving.reasons import memory_shortfall, missed_targets
from solver.serving.traffic import Share
from solver.serving_load import ClosedArrivals

_SHARES_ROUNDING = 1e-6
"""What shares of a plan, as people may write them, may be off a sum of 1."""


def given_kinds(request: PlanRequest, plan: Plan, *, loads: list[float] | None = None) -> list[tuple[WorkerKind, PlanRequest]]:
    """Each kind of a plan and the request of its share of the arrivals, or of a load of its own.

    Raises PlanFileError where shares do not sum to 1.
    """
    assert isinstance(request.workload, ServingWorkload)
    shares = [kind.share for kind in plan.kinds]
    if min(shares) <= 0.0 or abs(math.fsum(shares) - 1.0) > _SHARES_ROUNDING:
        raise PlanFileError("shares of the arrivals must be positive and sum to 1", given=shares)
    if loads is None:
        loads = [share * asked_rate(request) for share in shares]
    return list(zip(plan.kinds, kind_requests(request, shares, loads), strict=True))


def predict_mixture(request: PlanRequest, plan: Plan) -> Plan:
    """The plan's kinds with every figure predicted anew; infeasible, with the reason, when one of them does not fit in memory
    or misses a target by itself. Objective throughput: figures are at the plan's own rates, or at the request's where those
    are missed.

    Raises PlanFileError when the plan does not belong to the request.
    """
    asked = [given_kinds(request, plan)]
    claimed = [kind.requests_per_s for kind in plan.kinds]
    if request.objective is Objective.THROUGHPUT and math.fsum(claimed) >= asked_rate(request):
        asked.insert(0, given_kinds(request, plan, loads=claimed))
    for kinds in asked:
        found = [_measured(plan, kind, own) for kind, own in kinds]
        measured = [each for each in found if isinstance(each, KindMeasured)]
        if len(measured) == len(found):
            break
    stats = SearchStats(candidates=1, evaluated=sum(each.evaluator.simulations for each in measured), seconds=0.0)
    reason = next((each for each in found if isinstance(each, Reason)), None)
    if reason is not None:
        return infeasible_plan(request, reason, stats)
    objective = mixture_objective(request, [each.measured for each in measured])
    certificate = Certificate(Status.FEASIBLE, objective, None, None, UNITS[request.objective], "this plan only")
    return mixture_plan(request, measured, certificate=certificate, stats=stats, notes=())


def asked_rate(request: PlanRequest) -> float:
    """Requests per second that a request asks for; 0 for clients in a closed loop."""
    assert isinstance(request.workload, ServingWorkload)
    arrivals = request.workload.arrivals
    return 0.0 if isinstance(arrivals, ClosedArrivals) else arrivals.requests_per_s


def given_kind(plan: Plan, kind: WorkerKind, own: PlanRequest) -> tuple[Evaluator, Candidate, Share]:
    """A kind's engine and batch limits, its share of its request's load, and what simulates it.

    Raises PlanFileError when the plan does not belong to the request.
    """
    return given_candidate(own, plan.of_kind(kind))


def _measured(plan: Plan, kind: WorkerKind, own: PlanRequest) -> KindMeasured | Reason:
    """A kind under its load, or what it lacks to keep its promise."""
    evaluator, candidate, share = given_kind(plan, kind, own)
    if candidate.limits.kv_tokens < evaluator.longest_request:
        limits = {"step_tokens": candidate.step_tokens, "sequences": candidate.sequences}
        return memory_shortfall(candidate.engine, **limits, tokens=evaluator.longest_request)
    measured = evaluator.measure_fully(candidate, share)
    if not measured.keeps:
        return missed_targets(evaluator, measured)
    first = min(devices.first for stage in kind.stages for devices in stage.devices)
    return KindMeasured(own, evaluator, measured, kind.share, first)
