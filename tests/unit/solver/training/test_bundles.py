"""Bounds of bundles: each level is bounded no higher than the next, no member costs less, and none that fits is left out."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.block_costs import Combinations
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Sharding, evaluate_decision
from meshwright.solver.training.search import family_view
from meshwright.solver.training.search.aims import Pending
from meshwright.solver.training.search.best_first import Bundling, expand, member_of
from meshwright.solver.training.search.bounds import Member
from meshwright.solver.training.search.partition import MemoryShortfall, cut
from meshwright.solver.training.space.candidates import SOME_LAYERS, Candidate, CandidateFamily, families
from tests.support.stopping import LookLimit
from tests.unit.solver.training.full_space import full_request
from tests.unit.solver.training.layered import layered_request

SEEDS = range(719, 750)
N_FAMILIES = 3
MOST_MEMBERS = 200
ROUNDING = 1 + 1e-9


def wide_families(request: TrainingRequest, costs: TrainingCosts) -> list[CandidateFamily]:
    """Some families of a request in the free space that are bounded in bundles: small ones, from all over the space."""
    if request.search.space is not Space.FREE:
        return []
    found = [family for family in families(request) if Bundling.suits(family) and family.n_candidates <= MOST_MEMBERS]
    few = (
        family for family in found[:: max(1, len(found) // (3 * N_FAMILIES))] if 0 < n_members(family, costs) <= MOST_MEMBERS
    )
    return list(itertools.islice(few, N_FAMILIES))


def n_members(family: CandidateFamily, costs: TrainingCosts) -> int:
    """The number of a family's members: its candidates under each sharding."""
    first = next(family.candidates())
    return family.n_candidates * sum(1 for _ in costs.shardings(first, costs.stage_kinds(first)))


def step_s(member: Member, costs: TrainingCosts) -> float:
    """The step time of a member's best stages, infinite where none fit."""
    decision = cut(member, costs)
    if isinstance(decision, MemoryShortfall):
        return math.inf
    cost = evaluate_decision(decision, member.tables)
    return cost.step_time_s if cost.fits else math.inf


def listed(family: CandidateFamily, costs: TrainingCosts) -> dict[tuple[Candidate, Sharding], float]:
    """The step time of each member of a family that fits, found by listing them."""
    found = {}
    for choice in family.by_recompute():
        for node in expand(choice, costs):
            for member in (node,) if isinstance(node, Member) else node.members(node.candidates, costs):
                time_s = step_s(member, costs)
                if time_s < math.inf:
                    found[member.candidate, member.sharding] = time_s
    return found


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_bundles_bound_their_members_and_leave_none_out(seed: int) -> None:
    request = full_request(seed)
    costs = TrainingCosts(request)
    for family in wide_families(request, costs):
        exact, seen = listed(family, costs), {}
        bundling = Bundling(costs)
        for least, bundle in bundling.by_place(family, math.inf):
            for entry in bundling.entries(bundle, math.inf):
                assert least <= entry.bound * ROUNDING
                for bound, pending in bundling.members(family, entry, math.inf):
                    assert entry.bound <= bound
                    member = member_of(pending.candidate, pending.sharding, costs, some_layers=pending.some_layers)
                    if member is None:
                        continue
                    time_s = step_s(member, costs)
                    assert bound <= time_s * ROUNDING
                    if time_s < math.inf:
                        seen[member.candidate, member.sharding] = time_s
        # A stage that may choose its mode holds what stages with one mode can: both ways list the same best plan.
        assert exact.keys() <= seen.keys()
        assert min(seen.values(), default=math.inf) == min(exact.values(), default=math.inf)


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("seed", SEEDS[:6])
def test_a_bundle_is_opened_into_all_its_members(seed: int) -> None:
    """As the search does it: entries one after another, each with those behind it."""
    costs = TrainingCosts(full_request(seed))
    for family in wide_families(full_request(seed), costs):
        bundling = Bundling(costs)
        for least, bundle in bundling.by_place(family, math.inf):
            entries = bundling.entries(bundle, math.inf)
            listed = [member for entry in entries for member in bundling.members(family, entry, math.inf)]
            opened, waiting = [], [(least, bundle)]
            while waiting:
                for bound, node in bundling.opened(*waiting.pop(), math.inf):
                    if isinstance(node, Pending):
                        opened.append((bound, node))
                    else:
                        waiting.append((bound, node))
            assert opened == listed


@pytest.mark.parametrize("seed", SEEDS[:6])
def test_members_are_listed_between_looks_at_the_stopping_rule(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that a rule which ends the search at a look gets the members before it, whichever look it is, and no others."""
    request = full_request(seed)
    costs = TrainingCosts(request)
    for family in wide_families(request, costs):
        bundling = Bundling(costs)
        entries = [e for _, bundle in bundling.by_place(family, math.inf) for e in bundling.entries(bundle, math.inf)]
        for entry in entries[:3]:
            every = list(bundling.members(family, entry, math.inf))
            with monkeypatch.context() as few:
                few.setattr(family_view, "SHARDINGS_AT_ONCE", 1)
                assert list(bundling.members(family, entry, math.inf)) == every
                for at in range(1, 5):
                    found, limit = list[tuple[float, Pending]](), LookLimit(at)
                    with costs.stopped_by(limit) as unit:
                        for member in bundling.members(family, entry, math.inf):
                            found.append(member)
                    assert found == every[: len(found)]
                    assert len(found) <= at - 1
                    assert unit.was_stopped or found == every


def test_shardings_of_many_blocks_are_listed_only_as_far_as_they_are_asked_for() -> None:
    """As those of an encoder and a decoder: 2 ways of 40 choices for each of 8 blocks."""
    way = tuple(tuple((choice,) for choice in range(40)) for _ in range(8))
    many = Combinations((way, tuple(reversed(way))))
    first = list(itertools.islice(many, 5))
    assert first == [(*((0,),) * 7, (last,)) for last in range(5)]
    twice = Combinations(((((0,), (1,)),),) * 2)
    assert list(twice) == [((0,),), ((1,),)]


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("seed", SEEDS[:8])
def test_bundles_keep_what_beats_a_known_plan(seed: int) -> None:
    request = full_request(seed)
    costs = TrainingCosts(request)
    for family in wide_families(request, costs):
        times_s = sorted(listed(family, costs).values())
        if not times_s:
            continue
        below = times_s[len(times_s) // 2]
        bundling, found = Bundling(costs), []
        for least, bundle in bundling.by_place(family, below):
            assert least <= times_s[0] * ROUNDING or least >= below
            for entry in bundling.entries(bundle, below):
                for bound, pending in bundling.members(family, entry, below):
                    member = member_of(pending.candidate, pending.sharding, costs, some_layers=pending.some_layers)
                    if member is not None:
                        assert bound <= step_s(member, costs) * ROUNDING or bound >= below
                        found.append(step_s(member, costs))
        if times_s[0] < below:
            assert min(found) == times_s[0]
        assert [t for t in sorted(found) if t < below] == [t for t in times_s if t < below]


def test_modes_none_and_full_alone_are_not_taken_for_some_layers() -> None:
    """A stage may run all of its layers again or none, and also some of them: both are bounded where just these are allowed."""
    asked = next(request for request in map(layered_request, range(60)) if request.search.space is Space.FREE)
    request = replace(asked, search=replace(asked.search, recompute=SOME_LAYERS))
    costs = TrainingCosts(request)
    family = next(family for family in families(request) if family.mesh.pp == 1)
    bundling = Bundling(costs)
    assert family.recompute == (SOME_LAYERS,)
    entries = [entry for _, bundle in bundling.by_place(family, math.inf) for entry in bundling.entries(bundle, math.inf)]
    assert {entry.some_layers for entry in entries} == {False, True}
