"""Each level of the search is bounded no higher than the next: what it has not looked at can't be better than it says."""

from __future__ import annotations

import itertools

import pytest

from meshwright.costmodels.memory.training_state import Offload
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.blocks.tp_strategies import REPLICATED
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.search.aims import LeastEnergy, LeastStepTime
from meshwright.solver.training.search.best_first import expand, search
from meshwright.solver.training.search.bounds import Member, first_rank_lacks_bytes, least_shortfall_bytes
from meshwright.solver.training.search.partition import smallest_shortfall
from meshwright.solver.training.space.candidates import CandidateFamily, families
from meshwright.solver.training.space.meshes import Mesh
from meshwright.solver.training.space.schedules import Pipelining
from meshwright.solver.training.space.state_places import StatePlace
from tests.support.requests_given import resolved, training
from tests.unit.solver.training.full_space import full_request
from tests.unit.solver.training.instances import random_request

ROUNDING = 1 + 1e-12
N_FAMILIES = 8
INTERLEAVED = (1, 21, 27, 32)
"""Requests with members whose model chunks are interleaved; of 21 and 27 the first rank is what binds."""


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
            assert 0 < aim.operator_bound(family) <= bound * ROUNDING
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


def test_no_member_lacks_less_memory_than_its_bound() -> None:
    of_first_rank = 0
    for seed in INTERLEAVED:
        request = random_request(seed)
        costs = TrainingCosts(request)
        for family in families(request):
            for node in expand(family, costs):
                for member in (node,) if isinstance(node, Member) else node.members(node.candidates, costs):
                    exact = smallest_shortfall(member.candidate, member.tables).lacking_bytes
                    bound = least_shortfall_bytes(member)
                    # Devices that do not even hold what they need before any layer have no room: there only the sign counts.
                    has_room = min(table.capacity_bytes for table in member.tables) > 0
                    assert bound <= exact * ROUNDING + 1.0 if has_room else exact > 0
                    if member.candidate.pipelining.chunks > 1:
                        lacks = first_rank_lacks_bytes((member.candidate,), member.tables[0])
                        of_first_rank += bool(lacks[0] >= bound)
    assert of_first_rank > 50


def test_no_choice_of_modes_is_empty() -> None:
    """Ranks that hold a part together keep its gradients on the device: where these are moved, such schedules have no place."""
    plain = Pipelining(Schedule.ONE_F_ONE_B)
    together = Pipelining(Schedule.DUALPIPE)
    moved = StatePlace(0, offload=Offload(gradients=0.5))
    family = CandidateFamily(
        Mesh(dp=1, tp=1, pp=4, cp=1, ep=1), 1, 8, REPLICATED, (moved,), ((Recompute.NONE, Recompute.FULL),), (plain, together)
    )
    choices = list(family.by_recompute())
    assert [choice.recompute for choice in choices] == [((Recompute.NONE, Recompute.FULL),)]
    assert [candidate.pipelining for choice in choices for candidate in choice.candidates()] == [plain]


def test_sends_of_chunks_show_beyond_what_a_mean_stage_computes_at_least() -> None:
    """The same for every sharding: a slower one hides no more."""
    request = full_request(713175)
    costs = TrainingCosts(request)
    family = next(family for family in families(request) if (family.mesh.pp, family.mesh.tp) == (2, 2))
    candidate = next(family.candidates())
    kinds = costs.stage_kinds(candidate)
    (setting,) = costs.settings(candidate, kinds[0])
    least_s = costs.fastest_layers_s(setting, candidate.recompute)
    assert least_s is not None and candidate.pipelining.schedule is Schedule.INTERLEAVED
    sent_s = candidate.pipelining.chunks * costs.sends_s(candidate, kinds[0])
    shown = {costs.table(candidate, kinds[0], sharding).boundary_s for sharding in costs.shardings(candidate, kinds)}
    (shown_s,) = shown
    assert shown_s == pytest.approx(sent_s - least_s.sum() / 2)
    assert 0.0 < shown_s < sent_s


TOO_SHORT_S = 4.4
"""Seconds in which 8 H100 can't train 106 sequences: 4.62 by their operators alone."""


class Counting(LeastStepTime):
    """Counts the families that are bounded by their operators, and those whose blocks are costed."""

    by_operators = by_blocks = 0

    def operator_bound(self, family: CandidateFamily) -> float:
        self.by_operators += 1
        return super().operator_bound(family)

    def family_bound(self, family: CandidateFamily) -> float | None:
        self.by_blocks += 1
        return super().family_bound(family)


def test_blocks_are_not_costed_of_families_whose_operators_take_too_long() -> None:
    """Of a model whose step takes far longer than its launches, in less time than one node needs for so many sequences."""
    request = resolved(
        training(
            model={"catalog": "llama-3.1-8b"},
            cluster={"groups": [{"name": "node", "node": "dgx-h100", "nodes": 1}]},
            workload={"kind": "training", "global_batch": 106, "seq_len": 4096, "precision": "bf16", "optimizer": "adamw"},
            search={"space": "free"},
        )
    )
    assert isinstance(request, TrainingRequest)
    costs = TrainingCosts(request)
    aim = Counting(costs)
    result = search(request, costs, aim=aim, stop=never_stop, progress=ignore_progress, limit=TOO_SHORT_S)
    assert result.best is None and result.bound is not None and result.bound > TOO_SHORT_S
    assert 2 * aim.by_blocks < aim.by_operators
