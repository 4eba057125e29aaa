"""The checker's rules of memory at risk, on plans by the planner."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from meshwright.costmodels.model.memory_law import MemoryLaw
from meshwright.solver.answer.plan import Plan
from meshwright.solver.api import predict
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.implementation import StatedImplementation
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.planner import plan_training
from meshwright.solver.verify.check import check
from meshwright.solver.verify.violation import Rule
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.implementation import request_of
from tests.unit.solver.training.instances import random_request
from tests.unit.solver.verify.changes import changed


def planned(request: TrainingRequest) -> Plan:
    return plan_training(request, stop=never_stop, progress=ignore_progress)


def chance_of(plan: Plan) -> float:
    assert plan.predicted is not None and plan.predicted.chance_out_of_memory is not None
    return plan.predicted.chance_out_of_memory


@cache
def tight() -> tuple[TrainingRequest, Plan]:
    """A request whose plan may well run out of memory."""
    for seed in range(200):
        request = random_request(seed)
        plan = planned(request)
        if plan.feasible and chance_of(plan) > 0.01:
            return request, plan
    raise AssertionError("no request is tight")


def broken(plan: Plan, request: TrainingRequest) -> set[Rule]:
    return {violation.rule for violation in check(plan, request)}


def with_law(request: TrainingRequest, law: MemoryLaw) -> TrainingRequest:
    return replace(request, workload=replace(request.workload, implementation=StatedImplementation(memory=law)))


LAW = MemoryLaw(allocator=1.05, activations=1.1, transients=1.3, shared_sigma=0.05, own_sigma=0.02, origin="a test")


def test_a_plan_says_its_quantiles_and_keeps_to_the_risk() -> None:
    request, plan = tight()
    assert plan.predicted is not None and plan.predicted.peak_memory_p95_bytes is not None
    assert plan.predicted.peak_memory_p95_bytes > plan.predicted.peak_memory_bytes
    assert chance_of(plan) <= request.search.risk
    assert broken(plan, request) == set()


@pytest.mark.parametrize(
    ("field", "factor", "rule"),
    [
        ("peak_memory_p95_bytes", 1.01, Rule.PEAK_MEMORY),
        ("peak_memory_p95_bytes", 0.99, Rule.PEAK_MEMORY),
        ("chance_out_of_memory", 0.9, Rule.PEAK_MEMORY),
        ("chance_out_of_memory", 1.1, Rule.PEAK_MEMORY),
    ],
)
def test_a_wrong_quantile_is_found(field: str, factor: float, rule: Rule) -> None:
    request, plan = tight()
    value = factor * getattr(plan.predicted, field)
    assert broken(replace(plan, predicted=replace(plan.predicted, **{field: value})), request) == {rule}


@pytest.mark.parametrize("field", ["fragmentation_bytes", "learned_bytes"])
@pytest.mark.parametrize("more", [-0.02, 0.02])
def test_what_runs_take_over_what_is_counted_is_the_implementations(field: str, more: float) -> None:
    request, plan = tight()
    stages = tuple(
        replace(
            stage,
            memory=replace(stage.memory, **{field: getattr(stage.memory, field) + more * stage.memory.total_bytes}),
        )
        for stage in flat(plan).stages
    )
    assert Rule.OVERHEAD in broken(with_fields(plan, stages=stages), request)


def test_a_request_of_less_risk_refuses_the_plan() -> None:
    request, plan = tight()
    asked = replace(request, search=replace(request.search, risk=chance_of(plan) / 2))
    assert broken(plan, asked) == {Rule.RISK}
    again = predict(asked, plan)
    assert again.reason is not None and again.reason.constraint == "device_memory"
    assert again.reason.need > again.reason.have
    assert check(again, asked) == ()


@pytest.mark.parametrize("scale", [0.9, 1.0, 1.1])
def test_plans_follow_what_runs_taught(scale: float) -> None:
    request, _ = tight()
    asked = replace(with_law(request, replace(LAW, scale=scale)), search=replace(request.search, risk=0.5))
    usual = replace(asked, workload=replace(asked.workload, implementation=StatedImplementation(memory=LAW)))
    plan = planned(usual)
    again = predict(asked, plan)
    assert again.predicted is not None and plan.predicted is not None
    assert again.predicted.peak_memory_bytes == pytest.approx(scale * plan.predicted.peak_memory_bytes)
    assert check(again, asked) == ()


@pytest.mark.slow
def test_more_risk_is_never_slower() -> None:
    for seed in range(20):
        request = random_request(seed)
        steps = []
        for risk in (0.01, 0.05, 0.2, 0.5):
            plan = planned(replace(request, search=replace(request.search, risk=risk)))
            steps.append(plan.certificate.objective or float("inf"))
        assert steps == sorted(steps, reverse=True), seed


def test_a_head_whose_weight_gradients_wait_keeps_what_they_are_of() -> None:
    """The normed input of 4,096 columns and half of the 128,256 logits, of each token of 15 micro-batches."""
    request = request_of({"head_gradients": "deferred"})
    plan = planned(request)
    assert broken(plan, request) == set()
    last = len(flat(plan).stages) - 1
    held = 15 * 4096 * (4096 + 128256 / 2) * 2
    less = changed(plan, f"stages.{last}.memory.overhead_bytes", flat(plan).stages[last].memory.overhead_bytes - held)
    (found,) = [each for each in check(less, request) if each.where.endswith("memory.overhead_bytes")]
    assert found.rule is Rule.OVERHEAD and str(held) in found.message
    # The first stage has no head, and in the backward pass nothing waits.
    empty = changed(plan, "stages.0.memory.overhead_bytes", 0.0)
    assert not [each for each in check(empty, request) if each.where.endswith("memory.overhead_bytes")]
    at_once = request_of({})
    assert not [each for each in check(less, at_once) if each.where.endswith("memory.overhead_bytes")]
