"""Rules of serving plans of equal replicas, which compute prompts and answers."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.solver.answer.layouts import Replicas, Workers
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.problem.choices import ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.verify.rules import band_violations, cost_violations, peak_violations
from meshwright.solver.verify.serving.degrees import restriction_violations, shape_violations, shared_prompt_violations
from meshwright.solver.verify.serving.load import load_violations, power_violations, speculation_violations
from meshwright.solver.verify.serving.memory import memory_violations
from meshwright.solver.verify.violation import Rule, Violation


def violations(plan: Plan, layout: Replicas, request: ServingRequest) -> Iterator[Violation]:
    """Every rule of a plan of replicas."""
    assert plan.predicted is not None, "answer_violations asks for it"
    return replica_violations(layout, plan.predicted, request, devices=plan.devices)


def replica_violations(
    replicas: Replicas, predicted: Predicted, request: ServingRequest, *, devices: int
) -> Iterator[Violation]:
    """Every rule of replicas on so many ``devices``, and of what is predicted of them."""
    workers, load = replicas.workers, replicas.load
    shape = (*_shared_prompt_violations(workers, request), *shape_violations(workers, request, devices=devices))
    yield from shape
    if shape:
        return
    if ServingMode.AGGREGATED not in request.search.modes:
        yield Violation(Rule.SEARCH, "plan.prefill", "missing, the request allows disaggregated plans only")
    yield from speculation_violations(workers, request)
    yield from restriction_violations(workers.axes, request)
    yield from memory_violations(workers, request, mean_batch=load.mean_batch)
    yield from peak_violations(predicted, workers.stages)
    yield from load_violations(load, predicted, request)
    yield from cost_violations(predicted, request, [(workers.stages, devices)])
    yield from power_violations(predicted, [workers], request, devices=devices)
    yield from band_violations(predicted)


def _shared_prompt_violations(workers: Workers, request: ServingRequest) -> Iterator[Violation]:
    """Workers that do both phases share prompts where the request names the degree."""
    axes = workers.axes
    yield from shared_prompt_violations(workers, request)
    if axes.cp > 1 and axes.cp not in request.search.cp:
        given = f"{axes.cp}, the request allows {request.search.cp or (1,)} of workers that do both phases"
        yield Violation(Rule.SEARCH, "plan.axes.cp", given)
