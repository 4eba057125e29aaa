"""The mechanisms of a plan: none of plain data parallelism, one for each choice that is another, and the plainest of equals."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from meshwright.costmodels.memory.training_state import NOTHING_OFFLOADED, Offload, Optimizer
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.carried_choices import MeshChoices, StageChoices
from meshwright.solver.problem.choices import Gradients, Recompute, TpOverlap
from meshwright.solver.problem.declared.cp_keys import CpKeys
from meshwright.solver.problem.declared.expert_overlap import ExpertOverlap
from meshwright.solver.problem.declared.rank_order import RankOrder
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.report.equals import RANKING_NOISE, equal_plans, mechanisms
from meshwright.solver.training.search.best_first import search
from meshwright.solver.training.space.candidates import Candidate, families, summary
from meshwright.solver.training.space.schedules import PLAIN
from tests.unit.solver.training.instances import random_request


def _plain() -> Candidate:
    """A candidate that has nothing but replicas."""
    requests = map(random_request, range(20))
    found = next(each for request in requests for family in families(request) for each in family.candidates())
    mesh = replace(found.mesh, tp=1, pp=1, cp=1, ulysses=1, ep=1, etp=None)
    return Candidate(
        mesh=replace(mesh, choices=MeshChoices()),
        microbatch=1,
        n_microbatches=4,
        zero_stage=0,
        boundary=found.boundary,
        recompute=(Recompute.NONE,),
    )


CHANGES = {
    "mesh": (
        {"tp": 2},
        {"pp": 2},
        {"cp": 2},
        {"cp": 2, "ulysses": 2},
        {"cp": 2, "choices": MeshChoices(cp_keys=CpKeys.GATHERED)},
        {"ep": 2},
        {"choices": MeshChoices(RankOrder.DP_OUTERMOST)},
    ),
    "zero_stage": (3,),
    "recompute": ((Recompute.FULL,), (Recompute.NONE, Recompute.SELECTIVE)),
    "shard_ranks": (8,),
    "offload": (Offload(optimizer=0.5),),
    "optimizer": (Optimizer.MUON,),
    "gradients": (Gradients.RELEASED,),
    "tp_overlap": (TpOverlap.CHUNKED,),
    "expert_overlap": (ExpertOverlap.BATCH,),
    "choices": (StageChoices(recompute_layers=2),),
}
NOT_COUNTED = {"microbatch", "n_microbatches", "boundary", "pipelining"}
"""Fields that come with another choice or are a number alone; schedules count in pipelines."""


def test_every_field_of_a_candidate_is_counted_or_said_to_be_not() -> None:
    assert {each.name for each in fields(Candidate)} == CHANGES.keys() | NOT_COUNTED


def test_replicas_alone_need_no_mechanism() -> None:
    assert mechanisms(_plain()) == ()


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in CHANGES.items() for value in values])
def test_each_choice_that_is_another_is_one_mechanism(name: str, value: object) -> None:
    plain = _plain()
    changed = replace(plain, mesh=replace(plain.mesh, **value)) if isinstance(value, dict) else replace(plain, **{name: value})
    assert len(mechanisms(changed)) == 1


def test_a_schedule_counts_in_a_pipeline() -> None:
    plain = _plain()
    piped = replace(plain, mesh=replace(plain.mesh, pp=2))
    other = replace(PLAIN, schedule=Schedule.GPIPE)
    assert set(mechanisms(replace(piped, pipelining=other))) == {"pipeline parallelism", "the gpipe schedule"}
    assert plain.offload == NOTHING_OFFLOADED


def test_the_plainest_of_equals_is_named_unless_it_is_the_answer() -> None:
    named = 0
    for seed in range(12):
        request = random_request(seed)
        costs = TrainingCosts(request)
        found = search(request, costs, stop=never_stop, progress=ignore_progress, reach=RANKING_NOISE.within)
        if found.best is None:
            continue
        limit = found.best.value * (1 + RANKING_NOISE.within)
        near = [each.decision.candidate for each in (found.best, *found.alternatives, *found.near) if each.value <= limit]
        least = min(len(mechanisms(candidate)) for candidate in near)
        plainest = equal_plans(costs, found).plainest
        if plainest is None:
            assert len(mechanisms(found.best.decision.candidate)) == least
        else:
            assert plainest.differs.startswith("does without ")
            assert plainest.summary in {summary(each) for each in near if len(mechanisms(each)) == least}
            named += 1
    assert named
