"""Searches that begin with a known plan, and the launchable part of a wider search."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import Progress, ignore_progress, never_stop
from meshwright.solver.problem.choices import (
    BatchShares,
    Gradients,
    GroupOrder,
    Launcher,
    Objective,
    Space,
    StageDegrees,
    TpOverlap,
)
from meshwright.solver.problem.declared.cp_keys import CpKeys
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.forms.uniform.launchable_inside import (
    begins_with_launchable,
    launchable_inside,
    launchable_part,
    simple_parts,
)
from meshwright.solver.training.forms.uniform.search import best_near
from meshwright.solver.training.planner import plan_training
from meshwright.solver.training.search.best_first import SearchResult, Solved, search
from meshwright.solver.verify.check import check
from tests.unit.solver.training.instances import random_request
from tests.unit.solver.training.launchable_inside import wide_request

SEEDS = [seed for seed in range(40) if random_request(seed).search.space is Space.FREE][:8]


def found_of(request: TrainingRequest, begin: Solved | None = None, *, never: bool = False) -> SearchResult:
    stop = (lambda: True) if never else never_stop
    return search(request, TrainingCosts(request), stop=stop, progress=ignore_progress, begin=begin)


@pytest.mark.slow
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
    inside = launchable_inside(request, costs, stop=never_stop, progress=ignore_progress)
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


@dataclass
class Asked:
    """Ends a search when it was asked so often whether it is to end, so that a test takes as many steps on any machine."""

    left: int

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize(
    "opened",
    [
        {},
        {"stage_degrees": StageDegrees.ANY},
        {"token_slices": (1, 2, 4)},
        {"offload_optimizer": (0.0, 0.5, 1.0), "gradients": tuple(Gradients)},
        {"stage_degrees": StageDegrees.ANY, "group_order": GroupOrder.ANY, "schedules": (Schedule.ONE_F_ONE_B,)},
    ],
)
def test_a_wide_search_that_is_stopped_early_has_a_plan(opened: dict[str, object]) -> None:
    request = wide_request(**opened)
    told: list[Progress] = []
    plan = plan_training(request, stop=Asked(500), progress=told.append)
    assert plan.certificate.status is Status.FEASIBLE and check(plan, request) == ()
    assert plan.certificate.objective is not None and plan.certificate.bound is not None
    assert 0.0 < plan.certificate.bound < plan.certificate.objective
    assert next(moment.best for moment in told if moment.best is not None) >= plan.certificate.objective


@pytest.mark.parametrize("objective", [Objective.DEVICES, Objective.COST, Objective.ENERGY])
def test_a_wide_search_for_a_part_of_the_cluster_that_is_stopped_early_has_a_plan(objective: Objective) -> None:
    request = replace(wide_request(), objective=objective)
    plan = plan_training(request, stop=Asked(500), progress=ignore_progress)
    assert plan.certificate.status is Status.FEASIBLE and check(plan, request) == ()
    assert plan.certificate.objective is not None and plan.certificate.bound is not None
    assert plan.certificate.bound <= plan.certificate.objective


def test_a_search_that_is_stopped_while_it_lists_its_candidates_proves_nothing_of_the_rest() -> None:
    request = wide_request()
    found = search(request, TrainingCosts(request), stop=Asked(3), progress=ignore_progress, floor=0.25)
    assert found.best is None and not found.complete and found.bound == 0.25


def test_simple_parts_keep_what_the_request_restricts() -> None:
    asked = Search(space=Space.FREE, microbatch=(2,), schedules=(Schedule.GPIPE,), dp=(4,), launcher=Launcher.TORCHTITAN)
    first, *others = simple_parts(asked)
    closed = {"tp_overlap": (TpOverlap.EXPOSED,), "cp_keys": (CpKeys.RING,)}
    assert first == Search(launcher=Launcher.TORCHTITAN, microbatch=(2,), schedules=(Schedule.GPIPE,), dp=(4,), **closed)  # type: ignore[arg-type]
    assert others and all(part.launcher is not Launcher.TORCHTITAN for part in others)
    assert next(simple_parts(Search(space=Space.FREE))).microbatch == (1,)


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


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [Launcher.TRL, Launcher.DEEPSPEED])
def test_a_faster_launcher_s_kernels_are_not_those_of_the_one_that_is_named(launcher: Launcher) -> None:
    workload = TrainingWorkload("training", global_batch=256, seq_len=8192)
    search = Search(space=Space.FREE, launcher=launcher)
    cluster = Cluster((NodeGroup("a", node_type("dgx-h100"), 1),))
    request = TrainingRequest(model("llama-3.1-8b"), cluster, workload, search=search)
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert plan.feasible and check(plan, request) == ()
    own = plan_training(
        replace(request, search=replace(search, space=Space.LAUNCHABLE)), stop=never_stop, progress=ignore_progress
    )
    assert plan.certificate.objective is not None and own.certificate.objective is not None
    assert plan.certificate.objective <= own.certificate.objective * (1 + 1e-9)
