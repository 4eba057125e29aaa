"""The members of a family of candidates: the nodes that best-first search opens it into."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from operator import attrgetter

from meshwright.costmodels.pipeline import ChunkCount
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.stage_table import Sharding, StageKind
from meshwright.solver.training.search.bounds import (
    EvenNeeds,
    Member,
    first_rank_lacks_bytes,
    host_suffices,
    least_shortfall_bytes,
)
from meshwright.solver.training.search.crowding import crowded_candidates
from meshwright.solver.training.space.candidates import Candidate, Family, RecomputedLayers
from meshwright.solver.training.space.schedules import PLAIN
from meshwright.solver.training.space.state_places import StatePlace


@dataclass(frozen=True)
class ChunkChoices:
    """Members under interleaved 1F1B that differ in the number of chunks alone, fewest first; ``fitting`` of them may fit."""

    candidates: tuple[Candidate, ...]
    sharding: Sharding
    kinds: tuple[StageKind, ...]
    fitting: tuple[Candidate, ...] = ()

    def relaxed(self, costs: TrainingCosts) -> Member:
        """A member that is bounded no higher than any of these: it waits as with the most chunks, sends as with the fewest, and
        may have any borders."""
        fewest, most = (
            costs.stage_tables(candidate, self.sharding, self.kinds) for candidate in (self.candidates[0], self.candidates[-1])
        )
        sends_of = dict(zip(most, fewest, strict=True))
        made = {waits: replace(waits, boundary_s=sends.boundary_s) for waits, sends in sends_of.items()}
        plain = replace(self.candidates[0], pipelining=PLAIN)
        return Member(plain, self.sharding, tuple(made[waits] for waits in most))

    def that_may_fit(self, relaxed: Member) -> tuple[Candidate, ...]:
        """Those whose memory is not proven to be too much (`least_shortfall_bytes`)."""
        if least_shortfall_bytes(relaxed) > 0:
            return ()
        lacks = first_rank_lacks_bytes(self.candidates, relaxed.tables[0])
        return tuple(candidate for candidate, lack in zip(self.candidates, lacks, strict=True) if lack <= 0)

    def members(self, candidates: Iterable[Candidate], costs: TrainingCosts) -> Iterator[Member]:
        """Some of them, each a member."""
        return _members_of(candidates, self.sharding, self.kinds, costs)


_PLACE_AND_MODES = attrgetter(*(each.name for each in fields(StatePlace)), "recompute")
"""The fields in which members of a family differ, but for their schedules."""


def expand(family: Family, costs: TrainingCosts) -> Iterator[Member | ChunkChoices]:
    """Members of a family: its candidates, each with every combination of Pareto-optimal shardings of its distinct blocks.

    A candidate that fits under none of them comes with the roomiest alone, which is enough to tell by how much.
    """
    if family.layers is RecomputedLayers.SOME and family.mesh.pp == 1:
        yield from _of_some_layers(family, costs)
        return
    kinds = costs.stage_kinds(next(family.candidates()))
    some = family.of_some_layers() if family.layers is RecomputedLayers.NONE_OR_SOME else None
    even = () if some is None else tuple(replace(some, places=some.places[:1]).candidates())
    needs = EvenNeeds.of(even, len(costs.layer_block))
    for _, alike in itertools.groupby(family.candidates(), key=_PLACE_AND_MODES):
        candidates = tuple(alike)
        shardings = tuple(costs.shardings(candidates[0], kinds))
        roomiest, crowded = crowded_candidates(candidates, shardings, kinds, costs)
        fitting = tuple(candidate for candidate in candidates if candidate not in crowded)
        for sharding in shardings:
            yield from _nodes(fitting, sharding, kinds, costs)
            if some is not None and candidates[0].place in some.places:
                lacks = needs.may_lack(costs.stage_tables(candidates[0], sharding, kinds))
                lacking = tuple(
                    each.at(candidates[0].place, each.recompute) for each, lack in zip(even, lacks, strict=True) if lack
                )
                yield from _nodes(lacking, sharding, kinds, costs)
        yield from _nodes(crowded, roomiest, kinds, costs)


def member_of(candidate: Candidate, sharding: Sharding, costs: TrainingCosts, *, some_layers: bool) -> Member | None:
    """The member with a candidate and a sharding, the fewest layers recomputed where that are ``some_layers``; None where the
    host has no room for it, or no such number of layers makes it fit."""
    kinds = costs.stage_kinds(candidate)
    if some_layers and candidate.mesh.pp == 1:
        fewest = costs.fewest_recomputed(candidate, sharding, kinds[0])
        if fewest is None:
            return None
        candidate = candidate.of_first_layers(fewest)
    return next(_members_of((candidate,), sharding, kinds, costs), None)


def _of_some_layers(family: Family, costs: TrainingCosts) -> Iterator[Member]:
    """Members that recompute some layers of their one stage whole: as few as fit, since each layer more takes longer. Of
    pipelines the number follows from the borders (`partition`)."""
    for candidate in family.candidates():
        kinds = costs.stage_kinds(candidate)
        shardings = tuple(costs.shardings(candidate, kinds))
        _, crowded = crowded_candidates((candidate,), shardings, kinds, costs)
        for sharding in () if crowded else shardings:
            fewest = costs.fewest_recomputed(candidate, sharding, kinds[0])
            if fewest is not None:
                chosen = candidate.of_first_layers(fewest)
                yield from _members_of((chosen,), sharding, kinds, costs)


def _nodes(
    candidates: tuple[Candidate, ...], sharding: Sharding, kinds: tuple[StageKind, ...], costs: TrainingCosts
) -> Iterator[Member | ChunkChoices]:
    """Candidates that differ in schedule alone under one sharding, those that differ in chunks alone as one node."""
    in_chunks = tuple(c for c in candidates if c.pipelining.traits.chunk_count is ChunkCount.ANY)
    alone = (c for c in candidates if c.pipelining.traits.chunk_count is not ChunkCount.ANY)
    yield from _members_of(alone, sharding, kinds, costs)
    if in_chunks:
        yield ChunkChoices(in_chunks, sharding, kinds)


def _members_of(
    candidates: Iterable[Candidate], sharding: Sharding, kinds: tuple[StageKind, ...], costs: TrainingCosts
) -> Iterator[Member]:
    """Each candidate as a member under one sharding, those left out that move more to the host than it holds."""
    for candidate in candidates:
        member = Member(candidate, sharding, costs.stage_tables(candidate, sharding, kinds))
        if host_suffices(member):
            yield member
