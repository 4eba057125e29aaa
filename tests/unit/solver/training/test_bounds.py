"""Each level of the search is bounded no higher than the next: what it has not looked at can't be better than it says."""

from __future__ import annotations

import itertools

import pytest

from meshwright.costmodels.memory.offload import Offload
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.blocks.tp_strategies import REPLICATED
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.search.aims import LeastEnergy, LeastStepTime
from meshwright.solver.training.search.bounds import Member
from meshwright.solver.training.search.expansion import expand
from meshwright.solver.training.space.candidates import Family, families
from meshwright.solver.training.space.meshes import Mesh
from meshwright.solver.training.space.schedules import Pipelining
from meshwright.solver.training.space.state_places import StatePlace
from tests.unit.solver.training.instances import random_request

ROUNDING = 1 + 1e-12
N_FAMILIES = 8


@pytest.mark.parametrize("seed", [0, 4, 7, 13, 40])
def test_bounds_rise_from_level_to_level(seed: int) -> None:
    request = random_request(seed)
    costs = TrainingCosts(request)
    for aim in (LeastStepTime(costs), LeastEnergy(request, costs)):
        for family in itertools.islice(families(request), N_FAMILIES):
            bound = aim.family_bound(family)
            if bound is None:
                continue
            assert 0 < aim.launch_bound(family) <= bound * ROUNDING
            choices = list(family.by_recompute())
            assert sorted(c.sort_key for each in choices for c in each.candidates()) == sorted(
                c.sort_key for c in family.candidates()
            )
            for choice in choices:
                narrowed = aim.family_bound(choice)
                assert narrowed is not None
                assert bound <= narrowed * ROUNDING
                for node in expand(choice, costs):
                    member = node if isinstance(node, Member) else node.relaxed(costs)
                    assert narrowed <= aim.member_bound(member) * ROUNDING


def test_no_choice_of_modes_is_empty() -> None:
    """Ranks that hold a part together keep its gradients on the device: where these are moved, such schedules have no place."""
    plain = Pipelining(Schedule.ONE_F_ONE_B)
    together = Pipelining(Schedule.DUALPIPE)
    moved = StatePlace(0, offload=Offload(gradients=0.5))
    family = Family(
        Mesh(dp=1, tp=1, pp=4, cp=1, ep=1), 1, 8, REPLICATED, (moved,), ((Recompute.NONE, Recompute.FULL),), (plain, together)
    )
    choices = list(family.by_recompute())
    assert [choice.recompute for choice in choices] == [((Recompute.NONE, Recompute.FULL),)]
    assert [candidate.pipelining for choice in choices for candidate in choice.candidates()] == [plain]
