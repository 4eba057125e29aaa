"""Searches that begin with a known plan, and the launchable part of a wider search."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.app.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import BatchShares, Gradients, Launcher, Space, StageDegrees
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.forms.uniform.launchable_inside import (
    begins_with_launchable,
    launchable_inside,
    launchable_part,
)
from meshwright.solver.training.search.best_first import search
from meshwright.solver.training.search.near import best_near
from meshwright.solver.training.search.search_result import SearchResult, Solved
from tests.unit.solver.training.instances import random_request

SEEDS = [seed for seed in range(40) if random_request(seed).search.space is Space.FREE][:8]


def found_of(request: TrainingRequest, begin: Solved | None = None, *, never: bool = False) -> SearchResult:
    stop = (lambda: True) if never else never_stop
    return search(request, TrainingCosts(request), stop=stop, progress=ignore_progress, begin=begin)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_finished_search_does_not_depend_on_the_plan_that_it_began_with(seed: int) -> None:
    request = random_request(seed)
    alone = found_of(request)
    if alone.best is None:
        return
    for begin in (alone.best, *alone.alternatives[:2]):
        again = found_of(request, begin)
        assert again.complete and again.best is not begin
        assert again.best is not None and again.best.decision == alone.best.decision
        assert again.bound == alone.bound


@pytest.mark.parametrize("seed", SEEDS)
def test_a_search_without_time_keeps_the_plan_that_it_began_with(seed: int) -> None:
    request = random_request(seed)
    alone = found_of(request)
    if alone.best is None:
        return
    cut = found_of(request, alone.best, never=True)
    assert cut.best is alone.best and not cut.complete
    assert cut.bound is not None and cut.bound <= alone.best.value


@pytest.mark.parametrize("seed", SEEDS)
def test_launchable_plans_are_priced_as_plans_of_the_free_space(seed: int) -> None:
    request = random_request(seed)
    costs = TrainingCosts(request)
    inside = launchable_inside(request, costs, slo_limit_s=float("inf"), stop=never_stop, progress=ignore_progress)
    if inside is None:
        return
    objective, bound = inside.plan.certificate.objective, inside.plan.certificate.bound
    proven = found_of(request).best
    assert proven is not None and objective is not None and bound is not None
    assert bound <= inside.bound_s <= objective
    if inside.solved is not None:
        near = best_near(request, costs, inside.solved, stop=never_stop)
        assert proven.value <= near.value * (1 + 1e-9) <= inside.solved.value * (1 + 2e-9)


def test_a_restricted_search_of_a_mixed_cluster_begins_with_launchable_plans() -> None:
    """Of one schedule there are fewer candidates, each with hundreds of shardings."""
    cluster = Cluster(tuple(NodeGroup(name, node_type(name), 16) for name in ("dgx-h100", "dgx-a100")))
    search = Search(space=Space.FREE, stage_degrees=StageDegrees.ANY, schedules=(Schedule.ONE_F_ONE_B,))
    asked = TrainingRequest(model("llama-3.1-70b"), cluster, TrainingWorkload("training", 512, 8192), search=search)
    assert begins_with_launchable(asked)
    assert not begins_with_launchable(replace(asked, search=replace(search, dp=(16,), microbatch=(1,))))
    assert not begins_with_launchable(replace(asked, search=launchable_part(search, Launcher.MEGATRON_LM)))


def test_choices_that_no_launcher_has_are_closed_in_the_launchable_part() -> None:
    wide = Search(
        space=Space.FREE,
        stage_degrees=StageDegrees.ANY,
        batch_shares=BatchShares.BY_GROUP,
        gradients=tuple(Gradients),
        offload_activations=(0.0, 0.5),
        zero_stages=(1,),
    )
    part = launchable_part(wide, Launcher.TORCHTITAN)
    assert part == Search(launcher=Launcher.TORCHTITAN, zero_stages=(1,))
    # What must be opened stays open: no launchable plan has it.
    forced = launchable_part(replace(wide, gradients=(Gradients.RELEASED,)), Launcher.TORCHTITAN)
    assert forced.gradients == (Gradients.RELEASED,)
