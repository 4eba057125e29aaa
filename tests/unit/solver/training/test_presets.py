"""Spaces of published planners: each is a part of the full one, and the checker knows what is not in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.memory.training_state import Offload, Optimizer
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choice import TRAINING, Part
from meshwright.solver.problem.choices import Gradients, Recompute, Space, System
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import LEDGER, Search
from meshwright.solver.training.costs.part_borders import even_cuts
from meshwright.solver.training.planner import plan_training
from meshwright.solver.training.space.candidates import PRESETS, Candidate, families
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.support.opened_choices import opened
from tests.unit.solver.training.instances import random_request

SEEDS = range(1, 9)


def in_space_of(request: TrainingRequest, system: System | None) -> TrainingRequest:
    return replace(request, search=Search(launcher=request.search.launcher, system=system))


def plan_of(request: TrainingRequest) -> Plan:
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert plan.certificate.status in (Status.OPTIMAL, Status.INFEASIBLE)
    assert check(plan, request) == ()
    return plan


@pytest.mark.slow
@pytest.mark.parametrize("system", list(System))
def test_no_preset_is_better_than_the_full_space(system: System) -> None:
    for seed in SEEDS:
        request = random_request(seed)
        full, theirs = (plan_of(in_space_of(request, name)).certificate.objective for name in (None, system))
        if theirs is not None:
            assert full is not None
            assert full <= theirs * (1 + 1e-9)


def test_every_system_has_a_preset() -> None:
    assert set(PRESETS) == set(System)


def test_a_plan_outside_the_preset_is_refused() -> None:
    requests = (in_space_of(random_request(seed), None) for seed in range(100))
    request, plan = next((request, plan) for request in requests if (plan := plan_of(request)).feasible)
    given = with_fields(plan, stages=tuple(replace(stage, recompute=Recompute.SELECTIVE) for stage in flat(plan).stages))
    assert Rule.SEARCH in {violation.rule for violation in check(given, in_space_of(request, System.MIST))}


def test_a_restriction_that_leaves_nothing_is_said_so() -> None:
    request = random_request(0)
    with pytest.raises(WorkloadError, match="zero_stages"):
        plan_of(replace(request, search=Search(system=System.AMP, zero_stages=(3,))))


def test_planners_without_pipelines_have_one_stage() -> None:
    requests = (in_space_of(random_request(seed), None) for seed in range(100))
    request, plan = next((r, plan) for r in requests if (plan := plan_of(r)).feasible and flat(plan).axes.pp > 1)
    assert Rule.SEARCH in {violation.rule for violation in check(plan, in_space_of(request, System.TOFU))}
    theirs = plan_of(in_space_of(request, System.TOFU))
    assert not theirs.feasible or flat(theirs).axes.pp == 1
    with pytest.raises(WorkloadError, match="pp"):
        plan_of(replace(request, search=Search(system=System.FLEXFLOW, pp=(2,))))


def test_equal_stages_differ_at_the_ends_only() -> None:
    cuts = even_cuts(34, 4)
    sizes = cuts[:, 1:] - cuts[:, :-1]
    assert (sizes.sum(axis=1) == 34).all()
    assert (abs(sizes[:, 1] - sizes[:, 2]) <= 1).all()
    assert sizes[:, [0, 3]].max() == 10


OF_CANDIDATES = [
    name
    for name, entry in LEDGER.items()
    if entry.choice.forms & TRAINING and entry.choice.place and entry.choice.place.part is not Part.FORM
]


@pytest.mark.parametrize("name", OF_CANDIDATES)
@pytest.mark.parametrize("system", [System.ALPA, System.MIST])
def test_no_choice_that_a_request_opens_adds_to_a_preset(system: System, name: str) -> None:
    """Property over all choices of the ledger: beside a system, naming more values never gives a candidate that it has not."""
    seen = 0
    for seed in (1, 4):
        request = random_request(seed)
        names = [group.name for group in request.cluster.groups]
        for space in Space:
            asked = Search(space=space, launcher=request.search.launcher, system=system)
            wider = replace(asked, **{name: opened(name, group_names=names)})
            theirs = candidates_of(replace(request, search=asked))
            found = candidates_of(replace(request, search=wider))
            assert found <= theirs
            seen += len(theirs)
    assert seen > 0


def candidates_of(request: TrainingRequest) -> set[Candidate]:
    """The candidates of a request; on one rank all ZeRO stages are one."""
    found = (candidate for family in families(request) for candidate in family.candidates())
    return {replace(each, zero_stage=0) if each.mesh.dp * each.mesh.cp == 1 else each for each in found}


def test_a_plan_with_what_no_published_planner_searches_is_refused() -> None:
    requests = (in_space_of(random_request(seed), None) for seed in range(100))
    request, plan = next((request, plan) for request in requests if (plan := plan_of(request)).feasible)
    asked = in_space_of(request, System.MIST)
    stages = tuple(replace(stage, offload=Offload(optimizer=0.5)) for stage in flat(plan).stages)
    released = tuple(replace(stage, gradients=Gradients.RELEASED) for stage in flat(plan).stages)
    for given in (
        with_fields(plan, stages=stages),
        with_fields(plan, stages=released),
        with_fields(plan, optimizer=Optimizer.MUON),
    ):
        said = [str(violation) for violation in check(given, asked)]
        assert any("mist does not search" in message for message in said)
