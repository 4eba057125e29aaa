"""Models that recompute some of their layers whole, on one stage and in pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from meshwright.app.launching.exporters import export
from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.errors import ExportError, PlanFileError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.problem.choices import Launcher, Recompute, Space, System
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import evaluate_decision
from meshwright.solver.training.planner import predict_training
from meshwright.solver.training.search.best_first import expand
from meshwright.solver.training.search.bounds import Member, least_recomputed, member_bound_s
from meshwright.solver.training.search.partition import MemoryShortfall, cut
from meshwright.solver.training.space.candidates import families
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.enumerated import enumerated, is_the_best
from tests.unit.solver.training.layered import layered_request, piped_request
from tests.unit.solver.training.planned import planned

SEEDS = range(14)
PIPED_SEEDS = (0, 2, 5, 9, 10, 11, 12, 14, 18, 20, 24, 31, 35, 38)


def test_plans_equal_enumeration_of_every_number_of_layers() -> None:
    found = set()
    for seed in SEEDS:
        request = layered_request(seed)
        plan = planned(request)
        assert is_the_best(plan, enumerated(request)), seed
        if plan.feasible:
            assert plan.certificate.status is Status.OPTIMAL
            assert predict_training(request, plan).predicted == plan.predicted, seed
            found.add((request.search.space, flat(plan).stages[0].recompute_layers))
    assert {space for space, number in found if number is not None} == set(Space), found
    assert len({number for _, number in found if number is not None}) > 1, found


@pytest.mark.slow
def test_pipelines_equal_enumeration_of_every_number_of_layers_of_a_part() -> None:
    found = set()
    for seed in PIPED_SEEDS:
        request = piped_request(seed)
        plan = planned(request)
        assert is_the_best(plan, enumerated(request)), seed
        assert plan.certificate.status is Status.OPTIMAL
        assert check(plan, request) == ()
        assert predict_training(request, plan).predicted == plan.predicted, seed
        stages = flat(plan).stages
        assert len({stage.recompute_layers for stage in stages}) == 1
        found.add((request.search.space, flat(plan).schedule, stages[0].recompute_layers is not None))
        unnamed = replace(request, search=replace(request.search, recompute_layers=()))
        assert is_the_best(planned(unnamed), enumerated(unnamed)), seed
    some = {(space, schedule) for space, schedule, is_some in found if is_some}
    assert some == {(space, schedule) for space in Space for schedule in ("1f1b", "interleaved-1f1b")}, found


@pytest.mark.parametrize("seed", [10, 9])
def test_stages_of_a_pipeline_keep_what_they_say_and_say_the_same(seed: int) -> None:
    """One part a stage, and several."""
    request = piped_request(seed)
    plan = planned(request)
    first, *others = flat(plan).stages
    assert first.recompute_layers is not None
    for number in (first.recompute_layers + 1, None):
        other = tuple(replace(stage, recompute_layers=number) for stage in (first, *others))
        assert check(with_fields(plan, stages=other), request), number
    unlike = with_fields(plan, stages=(replace(first, recompute_layers=first.recompute_layers + 1), *others))
    assert Rule.STAGES in {violation.rule for violation in check(unlike, request)}
    with pytest.raises(PlanFileError, match="one number for all stages"):
        predict_training(request, unlike)
    split = with_fields(plan, schedule="zb-h1")
    assert Rule.STAGES in {violation.rule for violation in check(split, request)}


def some_layers(space: Space) -> tuple[TrainingRequest, Plan]:
    """A request of a space and its plan that recomputes some layers."""
    for seed in range(60):
        request = layered_request(seed)
        if request.search.space is space:
            plan = planned(request)
            if plan.feasible and flat(plan).stages[0].recompute_layers is not None:
                return request, plan
    raise AssertionError("no request of the first 60 asks for some layers")


@pytest.mark.parametrize("space", Space)
def test_a_plan_with_fewer_layers_recomputed_than_it_says_is_refused(space: Space) -> None:
    request, plan = some_layers(space)
    (stage,) = flat(plan).stages
    assert stage.recompute is Recompute.FULL and stage.recompute_layers is not None
    rules = {
        number: {v.rule for v in check(with_fields(plan, stages=(replace(stage, recompute_layers=number),)), request)}
        for number in (stage.recompute_layers - 1, stage.recompute_layers + 1, len(request.model.layers), None)
    }
    assert all(rules.values()), rules
    assert Rule.STAGES in rules[len(request.model.layers)]
    selective = with_fields(plan, stages=(replace(stage, recompute=Recompute.NONE),))
    assert Rule.STAGES in {v.rule for v in check(selective, request)}
    with pytest.raises(PlanFileError, match="recompute_layers"):
        predict_training(request, selective)


def test_requests_restrict_the_number_of_layers() -> None:
    request, plan = some_layers(Space.LAUNCHABLE)
    number = flat(plan).stages[0].recompute_layers
    assert number is not None
    others = tuple(n for n in range(1, len(request.model.layers)) if n != number)
    asked = replace(request, search=replace(request.search, recompute_layers=others))
    assert "search" in {v.rule for v in check(plan, asked)}
    assert flat(planned(asked)).stages[0].recompute_layers != number
    whole = replace(request, search=replace(request.search, recompute=(Recompute.FULL,)))
    assert flat(planned(whole)).stages[0].recompute_layers is None


def test_published_planners_and_launchers_without_a_flag_recompute_all_layers_or_none() -> None:
    request, plan = some_layers(Space.FREE)
    mist = replace(request, search=replace(request.search, system=System.MIST, zero_stages=()))
    answer = planned(mist)
    assert not answer.feasible or flat(answer).stages[0].recompute_layers is None
    request, plan = some_layers(Space.LAUNCHABLE)
    titan = replace(request, search=replace(request.search, launcher=Launcher.TORCHTITAN))
    assert "launcher" in {v.rule for v in check(plan, titan)}
    with pytest.raises(ExportError, match="some layers"):
        export(plan, request, "torchtitan")


def test_bounds_of_pipelines_know_how_many_layers_are_recomputed_at_least() -> None:
    """Of 32 layers on four stages, under schedules and micro-batches that lack more or less memory."""
    search = Search(
        pp=(4,),
        tp=(2,),
        cp=(1,),
        microbatch=(1, 2, 4),
        zero_stages=(1,),
        recompute=(Recompute.NONE, Recompute.FULL),
        schedules=(Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED),
        virtual_stages=(2, 4),
    )
    cluster = Cluster((NodeGroup("node", node_type("dgx-a100-40gb"), 1),))
    workload = TrainingWorkload("training", global_batch=32, seq_len=4096)
    costs = TrainingCosts(TrainingRequest(model("llama-3.1-8b"), cluster, workload, search=search))
    numbers = []
    for member in members(costs):
        decision = cut(member, costs)
        if not member.candidate.choices.lacks_layers or isinstance(decision, MemoryShortfall):
            continue
        _, least = least_recomputed(member.candidate, member.tables)
        found = decision.candidate.choices.recompute_layers
        assert found is not None and least <= found
        assert member_bound_s(member) <= evaluate_decision(decision, member.tables).step_time_s
        numbers.append(least)
    assert max(numbers) > 1, numbers


def members(costs: TrainingCosts) -> Iterator[Member]:
    for family in families(costs.request):
        for choice in family.by_recompute():
            for node in expand(choice, costs):
                yield from (node,) if isinstance(node, Member) else node.members(node.candidates, costs)
