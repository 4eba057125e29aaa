"""The checker on interleaved and eager plans: one worked out by hand is accepted, and each single thing broken in it found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import TimeBreakdown
from meshwright.solver.answer.stage import LayerSpan
from meshwright.solver.problem.choices import Launcher, Recompute, Space
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.verify.changes import changed
from tests.unit.solver.verify.plans import training_plan, training_request


def interleaved_request(**search: object) -> PlanRequest:
    return training_request(search=Search(**search))  # type: ignore[arg-type]


def interleaved_plan() -> Plan:
    """The 1F1B plan of `training_plan` with its six layers in four parts: {0, 1} and {3} on rank 0, {2} and {4, 5} on rank 1.

    Rank 0 holds at most 3 + 2 passes of one layer each, rank 1 at most 2 of a layer and 1 of layer and head. Two ranks of
    two chunks wait half as long: 4 x 3 + (2 + 3 - 3) / 2 + 0.5 s.
    """
    plan = training_plan()
    first, last = flat(plan).stages
    first = replace(
        first,
        blocks=(LayerSpan("embedding", 0, 1), LayerSpan("layer", 1, 1), LayerSpan("layer", 3, 1)),
        chunk_layers=(2, 1),
        in_flight=2.5,
        memory=replace(first.memory, activations_bytes=5.0 * 1280),
    )
    last = replace(
        last,
        blocks=(LayerSpan("layer", 2, 1), LayerSpan("layer", 4, 1), LayerSpan("head", 5, 1)),
        chunk_layers=(1, 2),
        in_flight=1.5,
        memory=replace(last.memory, activations_bytes=2.0 * 1280 + 1280 + 1152),
    )
    plan = with_fields(plan, stages=(first, last), schedule="interleaved-1f1b")
    return with_step(plan, 13.5, TimeBreakdown(8.0, 0.0, 2.0, 0.0, 1.0, 0.5, 1.5, 0.5))


def eager_plan() -> Plan:
    """The same layers in two stages under eager-1F1B: rank 0 runs three forwards before its first backward. Of each micro-batch
    ranks send for 0.5 and 1 s beside their 2 and 3 s: 3 x 3 + 2.5 + 4 + 0.5 s."""
    plan = training_plan()
    first, last = flat(plan).stages
    first = replace(first, in_flight=3, hidden_s=0.5, memory=replace(first.memory, activations_bytes=3 * 2.0 * 1280))
    plan = with_fields(plan, stages=(first, replace(last, hidden_s=1.0)), schedule="eager-1f1b")
    return with_step(plan, 16.0, TimeBreakdown(8.0, 0.0, 2.0, 0.0, 1.0, 0.5, 4.0, 0.5))


def with_step(plan: Plan, step_s: float, breakdown: TimeBreakdown) -> Plan:
    """The plan with a step time, and the figures that follow from it and from its stages."""
    assert plan.predicted is not None
    tokens_per_s = 8 * 16 / step_s
    return with_fields(
        plan,
        certificate=replace(plan.certificate, objective=step_s, bound=step_s),
        predicted=replace(
            plan.predicted,
            step_time_s=step_s,
            tokens_per_s=tokens_per_s,
            peak_memory_bytes=max(stage.memory.total_bytes for stage in flat(plan).stages),
            mfu=3 * 8 * 89600 / (step_s * 8e5),
            cost_per_million_tokens=8 * 2.0 / 3600 / tokens_per_s * 1e6,
        ),
        breakdown=breakdown,
    )


def rules(plan: Plan, request: PlanRequest | None = None) -> set[Rule]:
    return {violation.rule for violation in check(plan, request or interleaved_request())}


def test_an_interleaved_plan_worked_out_by_hand_is_accepted() -> None:
    assert check(interleaved_plan(), interleaved_request()) == ()


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("schedule", "zb-v", {Rule.LAYERS}),  # 4 micro-batches fill it, but rank 0 then holds the first and the last part
        ("schedule", "1f1b", {Rule.STAGES}),
        ("schedule", "gantt", {Rule.STAGES}),
        ("stages.0.chunk_layers", (1, 2), {Rule.LAYERS}),
        ("stages.0.chunk_layers", (2, 2), {Rule.LAYERS}),
        ("stages.0.chunk_layers", (), {Rule.STAGES, Rule.LAYERS}),
        ("stages.0.in_flight", 2.0, {Rule.IN_FLIGHT}),
        ("stages.0.memory.activations_bytes", 4.0 * 1280, {Rule.ACTIVATIONS}),
        ("stages.1.recompute", Recompute.FULL, {Rule.STAGES}),
        ("stages.0.blocks.1.first", 2, {Rule.LAYERS}),
        ("stages.0.blocks.0.block", "layer", {Rule.LAYERS}),
    ],
)
def test_one_broken_thing_is_found(path: str, value: object, expected: set[Rule]) -> None:
    plan = changed(interleaved_plan(), path, value)
    if path.endswith("activations_bytes"):
        plan = changed(plan, "predicted.peak_memory_bytes", max(stage.memory.total_bytes for stage in flat(plan).stages))
    found = rules(plan)
    assert found == expected


def test_the_wait_of_1f1b_is_refused() -> None:
    plan = interleaved_plan()
    for path in ("predicted.step_time_s", "certificate.objective", "certificate.bound"):
        plan = changed(plan, path, 14.5)
    assert Rule.STEP_TIME in rules(plan)


def test_launchers_and_restrictions() -> None:
    plan = interleaved_plan()
    assert Rule.LAUNCHER in rules(plan, interleaved_request(launcher=Launcher.DEEPSPEED))
    assert Rule.SEARCH in rules(plan, interleaved_request(virtual_stages=(4,)))
    assert rules(plan, interleaved_request(virtual_stages=(2,), space=Space.FREE)) == set()


def test_micro_batches_that_do_not_come_in_rounds_are_refused() -> None:
    assert Rule.STAGES in rules(changed(interleaved_plan(), "microbatch.count", 3))


def test_an_eager_plan_worked_out_by_hand_is_accepted() -> None:
    free = interleaved_request(space=Space.FREE)
    assert check(eager_plan(), free) == ()
    assert Rule.STAGES not in rules(changed(eager_plan(), "stages.1.recompute", Recompute.FULL), free)
    assert rules(eager_plan(), interleaved_request()) == {Rule.LAUNCHER}
    assert rules(eager_plan(), interleaved_request(space=Space.FREE, schedules=("1f1b",))) == {Rule.SEARCH}


LEAST_S = 3 * (2 * 19712 + 10752) / 2e5
"""The seconds that the last stage's FLOPs take at the peak of its devices."""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # What a rank sends beside its passes is still on a micro-batch's way.
        ({"stages.0.hidden_s": 0.0}, {Rule.STEP_TIME}),
        ({"stages.1.hidden_s": 3.5}, {Rule.STEP_TIME, Rule.STAGE_TIME}),
        ({"stages.1.time_s": LEAST_S, "stages.1.hidden_s": 1e-8}, {Rule.STEP_TIME, Rule.STAGE_TIME}),
        ({"stages.1.time_s": LEAST_S, "stages.1.hidden_s": 3e-7}, {Rule.STEP_TIME}),
        ({"stages.0.in_flight": 2}, {Rule.IN_FLIGHT}),
        ({"schedule": "1f1b"}, {Rule.IN_FLIGHT, Rule.ACTIVATIONS, Rule.STAGE_TIME}),
    ],
)
def test_one_broken_thing_of_an_eager_plan_is_found(changes: dict[str, object], expected: set[Rule]) -> None:
    plan = eager_plan()
    for path, value in changes.items():
        plan = changed(plan, path, value)
    assert rules(plan, interleaved_request(space=Space.FREE)) == expected
