"""Each level of the search is bounded no higher than the next: what it has not looked at can't be better than it says."""

from __future__ import annotations

import itertools

import pytest

from costmodels.offload import Offload
from costmodels.pipeline import Schedule
from solver.choices import Recompute
from solver.sharding import REPLICATED
from solver.training.aims import LeastEnergy, LeastStepTime
from solver.training.bounds import Member
from solver.training.costs import TrainingCosts
from solver.training.pipelining import Pipelining
from solver.training.places import StatePlace
from solver.training.search import expand
from solver.training.space import Family, Mesh, families
from tests.solver.training.instances import random_request

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
