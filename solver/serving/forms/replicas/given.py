"""Replicas of a plan that was given, predicted anew."""

from __future__ import annotations

from meshwright.solver.answer.layouts import Replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.reason import Reason
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.forms.form import Misfit
from meshwright.solver.serving.promise.certificates import predicted_certificate
from meshwright.solver.serving.workers.answer import feasible_plan
from meshwright.solver.serving.workers.given import given_candidate, judged, one_plan_stats
from meshwright.solver.serving.workers.reasons import memory_shortfall


def predict(request: ServingRequest, plan: Plan, replicas: Replicas) -> Plan | Misfit:
    """The plan's replicas and batch limits with every figure predicted anew.

    Or the reason, when it does not fit in memory or misses a target. Objective throughput: figures are at the
    plan's goodput, else at the request's arrival rate. Raises PlanFileError when the plan does not belong to the request.
    """
    evaluator, candidate, share = given_candidate(request, replicas.workers)
    engine = candidate.engine
    if candidate.limits.kv_tokens < evaluator.longest_request:
        reason = memory_shortfall(
            engine, step_tokens=candidate.step_tokens, sequences=candidate.sequences, tokens=evaluator.longest_request
        )
        return Misfit(reason, one_plan_stats(evaluator))
    found = judged(request, plan.predicted, evaluator, candidate, share)
    if isinstance(found, Reason):
        return Misfit(found, one_plan_stats(evaluator))
    certificate = predicted_certificate(request, found, evaluator)
    return feasible_plan(
        request, found, evaluator=evaluator, certificate=certificate, stats=one_plan_stats(evaluator), notes=()
    )
