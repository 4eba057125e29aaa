"""Best-first branch and bound over training candidates, with a proven bound at every moment.

Each level has a tighter lower bound, worked out only when the search comes to it. A *family* (mesh, micro-batch, residual
layout) has one from what the host takes to launch its kernels, then one from its block costs, then one for each choice of
recompute modes; a *member* (a family with ZeRO stage, recompute modes and shardings) has one from its full cost tables.
Members are solved exactly by the stage partition. Whatever is popped next has the lowest bound of all that is left, so the
search may stop as soon as that bound reaches the best plan found.

In the free space, whose candidates have hundreds of shardings, and in large launchable ones a family's members are bounded in
arrays (`Bundling`): first by place of state, then by candidate and choice of the main block, then one by one without their
tables.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import partial
from operator import attrgetter, itemgetter

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.pipeline import ChunkCount
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import OnProgress, Progress, SearchStopped, Stop
from meshwright.solver.problem.choices import Recompute, Space
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Decision, DecisionCost, Sharding, StageKind, StageTable, evaluate_decision
from meshwright.solver.training.search.aims import Aim, BoundedMembers, LeastStepTime, Pending
from meshwright.solver.training.search.bounds import (
    EvenNeeds,
    Member,
    SharedFigures,
    first_rank_lacks_bytes,
    host_suffices,
    least_shortfall_bytes,
)
from meshwright.solver.training.search.family_view import FamilyView
from meshwright.solver.training.search.partition import MemoryShortfall, ParameterLimit, cut, smallest_shortfall
from meshwright.solver.training.space.candidates import Candidate, CandidateFamily, RecomputedLayers, families
from meshwright.solver.training.space.meshes import Mesh
from meshwright.solver.training.space.schedules import PLAIN
from meshwright.solver.training.space.state_places import StatePlace

# The findings of a search: the best plan with its proven bound, others beside it, and what did not fit.

RELATIVE_TIE = 1e-12
"""Step times closer than this count as equal; the canonical order then decides."""


@dataclass(frozen=True)
class Solved:
    """A decision with its cost, and what it is worth by the search's aim; smaller is better."""

    decision: Decision
    cost: DecisionCost
    value: float

    @property
    def sort_key(self) -> tuple[object, ...]:
        """Canonical order among equals."""
        return (self.decision.candidate.sort_key, self.decision.sharding)


@dataclass
class SearchResult:
    """The result of a search; ``bound`` is in the unit of its aim.

    ``refused`` holds, for each mesh, the member that looked faster than the best plan and came closest to fitting. ``near``
    are plans within reach of the best that were looked for once it was proven, ``all_near`` says that there are no other kinds.
    """

    best: Solved | None = None
    bound: float | None = None
    alternatives: list[Solved] = field(default_factory=list)
    refused: dict[Mesh, tuple[Candidate, MemoryShortfall]] = field(default_factory=dict)
    n_candidates: int = 0
    n_members: int = 0
    n_solved: int = 0
    complete: bool = False
    near: list[Solved] = field(default_factory=list)
    all_near: bool = False

    def refuse(self, candidate: Candidate, shortfall: MemoryShortfall) -> None:
        """Note a member that does not fit, if it is the closest of its mesh."""
        known = self.refused.get(candidate.mesh)
        if known is None or shortfall.lacking_bytes < known[1].lacking_bytes:
            self.refused[candidate.mesh] = (candidate, shortfall)

    def take(self, solved: Solved) -> None:
        """Keep the better of two plans as the best; the other becomes an alternative."""
        best = self.best
        if best is None:
            self.best = solved
            return
        difference = solved.value - best.value
        tie = abs(difference) <= RELATIVE_TIE * best.value
        if (difference < 0 and not tie) or (tie and solved.sort_key < best.sort_key):
            self.best = solved
            self.alternatives.append(best)
        else:
            self.alternatives.append(solved)


# Bounds of all members of a family at once: the free space has hundreds of shardings for each of hundreds of candidates.
#
# What a layer takes depends on its own sharding, its recompute mode and the place of state alone,
# so figures are worked out for each choice of each block, not for each combination, and
# combinations are looked at in compiled loops (`bundle_kernels`). Three steps, each over fewer and
# tighter: places of state without what their communication takes; places with it, the shardings of
# the block that most layers have, all other blocks at their best; whole shardings.


@dataclass(frozen=True, eq=False)
class Bundle:
    """The members of a family with some places of state, and a bound of all."""

    family: CandidateFamily
    places: tuple[StatePlace, ...]


@dataclass(eq=False)
class Entries:
    """Entries of a bundle that may be better than what is known, lowest bound first, those before ``done`` taken."""

    family: CandidateFamily
    entries: list[BoundedMembers]
    done: int = 0

    def skip(self, is_known: Callable[[Candidate], bool]) -> bool:
        """Pass over the next entries whose candidates are known; return True if others are left."""
        while self.done < len(self.entries) and is_known(self.entries[self.done].candidate):
            self.done += 1
        return self.done < len(self.entries)


@dataclass(eq=False)
class Bundling:
    """Bounds members of families in bundles; what families share is worked out once."""

    costs: TrainingCosts

    def __post_init__(self) -> None:
        self._shared = SharedFigures(self.costs)

    @staticmethod
    def suits(family: CandidateFamily) -> bool:
        """True of families of whole sequences."""
        return family.n_slices == 1 and not family.pipelinings[0].slices

    def by_place(self, family: CandidateFamily, below: float) -> list[tuple[float, Bundle]]:
        """Bundles of a family's places of state with their bounds, those without one that may beat ``below`` together."""
        view = FamilyView(self._shared, family)
        if not view.choices.rows:
            return []
        bounds = view.least_of_places(below)
        better = [place for place, bound in zip(family.places, bounds, strict=True) if bound < below]
        others = [p for p, bound in zip(family.places, bounds, strict=True) if below <= bound < np.inf]
        made = []
        for places in (better, others):
            if places:
                least = min(bound for place, bound in zip(family.places, bounds, strict=True) if place in places)
                made.append((least, Bundle(family, tuple(places))))
        return made

    def opened(self, bound: float, node: Bundle | Entries, below: float) -> Iterator[tuple[float, Entries | Pending]]:
        """Yield what takes the place of a bundle, or of entries, which waited under ``bound``."""
        match node:
            case Bundle():
                entries = self.entries(node, below)
                if entries:
                    yield max(bound, entries[0].bound), Entries(node.family, entries)
            case Entries():
                yield from self.members(node.family, node.entries[node.done], below)
                node.done += 1
                if node.done < len(node.entries):
                    yield node.entries[node.done].bound, node

    def entries(self, bundle: Bundle, below: float) -> list[BoundedMembers]:
        """Entries of a bundle that may beat ``below``, lowest bound first; of all others the first alone."""
        return FamilyView(self._shared, replace(bundle.family, places=bundle.places)).entries(below)

    def members(self, family: CandidateFamily, entry: BoundedMembers, below: float) -> Iterator[tuple[float, Pending]]:
        """Yield the members of an entry that may fit, with their bounds. Raises SearchStopped between some and the next."""
        return FamilyView(self._shared, family).members(entry, below)


# The members of a family of candidates: the nodes that best-first search opens it into.


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


def _plain_members_of(family: CandidateFamily, costs: TrainingCosts) -> Iterator[Member]:
    """Members of a family under its first schedule and ZeRO-1, or what comes next to that, with each choice of recompute
    modes."""
    place = min(family.places, key=lambda each: abs(each.zero_stage - 1))
    plain = replace(family, places=(place,), pipelinings=family.pipelinings[:1], layers=RecomputedLayers.ALL_OR_NONE)
    for choice in plain.by_recompute():
        yield from (node for node in expand(choice, costs) if isinstance(node, Member))


_PLACE_AND_MODES = attrgetter(*(each.name for each in fields(StatePlace)), "recompute")
"""The fields in which members of a family differ, but for their schedules."""


def expand(family: CandidateFamily, costs: TrainingCosts) -> Iterator[Member | ChunkChoices]:
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


def _of_some_layers(family: CandidateFamily, costs: TrainingCosts) -> Iterator[Member]:
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


BELOW = 1e-9
"""Members bounded this far, relatively, beyond the best plan are not worked out further: float sums differ by less."""

PROGRESS_EVERY = 64
"""Popped nodes between two progress events."""

MIN_ALTERNATIVES = 3
"""Losing meshes that the search looks at before it ends, so that a runner-up can be named."""

MAX_EXTRA_MEMBERS = 200
"""Members solved only to find runners-up, or plans that leave more memory, at most."""

MAX_EXTRA_NODES = 256
"""Nodes looked at only to find runners-up, at most: about a second. Tens of thousands may be left, none of which fits."""

MOST_LISTED = 200_000
"""Candidates of launchable spaces whose members are listed one by one, at most: up to there, bundles take as long."""

MOST_KEPT_NEAR = 20_000
"""Candidates of free spaces whose bundles keep plans within reach of the best, at most: these take a second or two."""

MOST_NEAR_NODES = 256
"""Nodes looked at only to find plans within reach of the best, at most."""

MOST_NEAR_BUNDLES = 2048
"""The same of launchable spaces that are searched in bundles: two to three seconds."""

SLOWEST_THRIFTY = 2.0
"""Times the best step that plans which leave more memory may take: so far went those of searches that list members."""


Describe = Callable[[SearchResult], Plan | None]
"""Makes the plan record of a search's best so far; None when that does not answer the request."""


def search(
    request: TrainingRequest,
    costs: TrainingCosts,
    *,
    stop: Stop,
    progress: OnProgress,
    aim: Aim | None = None,
    limit: float = math.inf,
    holds: ParameterLimit | None = None,
    describe: Describe | None = None,
    begin: Solved | None = None,
    floor: float = 0.0,
    reach: float = 0.0,
    bundled: bool = False,
) -> SearchResult:
    """The plan of the request's space that is best by ``aim`` (the fastest), with a proven lower bound on every plan in it.

    Plans worth more than ``limit`` are of no interest to the caller: a search that finds none ends early, with ``bound`` at
    least the limit. ``holds`` leaves out plans whose devices hold more parameters. ``begin`` is a plan of the space that is
    known: the answer is no worse, and the same as without it where the search runs to its end. ``floor`` is a known bound.
    With a ``reach`` it goes on when the best is proven, for one plan of each kind that is worth that share more at most.
    ``bundled`` bounds members in arrays in small launchable spaces too, and keeps to the best plan: it comes sooner.
    """
    state = _Search(request, costs, aim or LeastStepTime(costs), holds, begin, reach, limit, bundled, stop)
    told: Solved | None = None
    while state.heap and not state.is_over(limit) and not stop():
        bound, node = state.pop()
        if state.n_popped % PROGRESS_EVERY == 0 or state.result.best is not told:
            told = state.result.best
            # The listener may ask for the plan: that is no work of the search, which its rule would end.
            progress(state.progress(max(bound, floor), describe))
        with costs.stopped_by(stop) as unit:
            state.take(bound, node)
        if unit.was_stopped:
            # What became of its part counts; the rest is still open under its bound.
            state.put_back(bound, node)
            break
    state.try_thrifty(stop)
    result = state.finish()
    if result.bound is not None and result.bound < floor:
        result.bound = floor if result.best is None else min(floor, result.best.value)
    return result


@dataclass(frozen=True)
class _Unpriced:
    """A family whose blocks have not been costed yet: its bound is what the host takes, or, where it ``is_computed``, what
    operators alone take, or, where it ``is_plain``, what all takes if nothing runs again. ``index`` is its place in the space.
    """

    family: CandidateFamily
    index: int
    is_computed: bool = False
    is_plain: bool = False


@dataclass(frozen=True)
class _Unlisted:
    """The families that were not listed before the search was to stop: nothing is known of them."""


_whatever_modules = attrgetter("mesh", "microbatch", "boundary", "tp_overlap", "expert_overlap", "pipelinings")
"""What families with named modules that differ in these alone have in common."""


class _Search:
    """The heap of open nodes, and what was found so far."""

    def __init__(
        self,
        request: TrainingRequest,
        costs: TrainingCosts,
        aim: Aim,
        holds: ParameterLimit | None,
        begin: Solved | None,
        reach: float,
        limit: float,
        bundled: bool,
        stop: Stop,
    ):
        self.reach = reach
        self.costs = costs
        self.aim = aim
        self.holds = holds
        self.begin = begin
        self.limit = limit
        self.result = SearchResult(best=begin)
        self.max_solved = request.search.max_candidates
        self._has_many_shardings = request.search.space is Space.FREE
        self.n_popped = 0
        self.n_extra = 0
        self.n_beyond = 0
        self.solved_meshes: set[Mesh] = set()
        self._savers: dict[Mesh, tuple[int, float, CandidateFamily]] = {}
        self._kinds: set[tuple[object, ...]] = set()
        self._n_kinds_of = 0
        self.heap: list[tuple[float, int, _Node]] = []
        self._order = itertools.count()
        self._plain: dict[tuple[object, ...], float | None] = {}
        self._launches: dict[tuple[object, ...], float] = {}
        for family in families(request):
            if stop():
                self._push(0.0, _Unlisted())
                break
            self.result.n_candidates += family.n_candidates
            index = next(self._order)
            self._push(self._launch_bound(family), _Unpriced(family, index), index)
        # Where members are listed, all that are worked out are alternatives; in bundles few are.
        n_candidates, only_best = self.result.n_candidates, bundled or request.search.space is Space.FREE
        many = (only_best or n_candidates > MOST_LISTED) and isinstance(self.aim, LeastStepTime)
        self.bundling = Bundling(costs) if many else None
        self._gathers = many and not only_best and reach > 0.0
        self._keeps_near = not many or self._gathers or n_candidates <= MOST_KEPT_NEAR

    def is_over(self, limit: float) -> bool:
        """Return True if nothing left can matter: the best is proven and has rivals to show, or all is beyond the limit."""
        bound, best = self.heap[0][0], self.result.best
        if best is None:
            return bound > limit or self._out_of_work()
        # What is as good as a plan that was known before takes its place: it must not matter whether one was known.
        if bound >= best.value * (1 + RELATIVE_TIE if best is self.begin else 1 - RELATIVE_TIE):
            self.result.complete = True
        if self.result.complete and bound > best.value * (1 + self.reach):
            self.result.all_near = True
        return (self.result.complete and self._has_rivals() and not self._looks_near()) or self._out_of_work()

    def pop(self) -> tuple[float, _Node]:
        """The open node with the lowest bound."""
        bound, _, node = heapq.heappop(self.heap)
        self.n_popped += 1
        # A family that waits under what its operators take was looked at before.
        self.n_beyond += self.result.complete and not (isinstance(node, _Unpriced) and node.is_computed)
        return bound, node

    def take(self, bound: float, node: _Node) -> None:
        """Put what follows from an open node in its place. Raises SearchStopped."""
        match node:
            case _Unlisted():
                raise SearchStopped
            case _Unpriced():
                self.price_family(bound, node)
            case CandidateFamily():
                self.expand_family(bound, node)
            case Bundle() | Entries():
                self.open_bundle(bound, node)
            case Pending() if not self._knows(node.candidate):
                self.make_member(bound, node)
            case ChunkChoices():
                self.expand_choices(node)
            case Member():
                self.try_member(node)

    def put_back(self, bound: float, node: _Node) -> None:
        """Open a node again that was taken in part."""
        self._push(bound, node)

    def _launch_bound(self, family: CandidateFamily) -> float:
        """The bound of a family by its launches, which are the same whatever modules run again."""
        if family.modules is None:
            return self.aim.launch_bound(family)
        key = _whatever_modules(family)
        if key not in self._launches:
            self._launches[key] = self.aim.launch_bound(family)
        return self._launches[key]

    def price_family(self, bound: float, unpriced: _Unpriced) -> None:
        """Put a family back under its bound, or drop it if its blocks can't be sharded its way.

        Where blocks have many shardings it comes back first under what its operators take. One whose modules are named comes
        back first under what it takes if nothing runs again, as long as with other modules.
        """
        family = unpriced.family
        if family.modules is not None and not unpriced.is_plain:
            key = _whatever_modules(family)
            if key not in self._plain:
                self._plain[key] = self.aim.family_bound(replace(family, modules=None, recompute=((Recompute.NONE,),)))
            plain = self._plain[key]
            if plain is not None:
                self._push(plain, replace(unpriced, is_plain=True), unpriced.index)
            return
        if self._has_many_shardings and family.modules is None and not (unpriced.is_computed or self.result.complete):
            self._push(max(bound, self.aim.operator_bound(family)), replace(unpriced, is_computed=True), unpriced.index)
            return
        priced = self.aim.family_bound(family)
        if priced is not None:
            self._push(priced, family, unpriced.index)
            self._take_note(family, priced)

    def expand_family(self, bound: float, family: CandidateFamily) -> None:
        """Put a family's choices of recompute modes in its place; of one choice its members, those that differ in chunks
        together."""
        if self.bundling is not None and self.bundling.suits(family):
            self.result.n_members += family.n_candidates
            for least, bundle in self.bundling.by_place(family, self.below):
                self._push(max(bound, least), bundle)
            return
        choices = tuple(family.by_recompute())
        if len(choices) > 1:
            for choice in choices:
                self._push(max(bound, self.aim.family_bound(choice) or 0.0), choice)
            return
        for node in expand(family, self.costs):
            if isinstance(node, Member):
                self._push(self.aim.member_bound(node), node)
            else:
                relaxed = node.relaxed(self.costs)
                self._push(self.aim.member_bound(relaxed), replace(node, fitting=node.that_may_fit(relaxed)))

    @property
    def below(self) -> float:
        """The figure that plans must not exceed to be of interest."""
        best = self.result.best
        beyond = max(BELOW, self.reach) if self._keeps_near or self.result.complete else BELOW
        return (self.limit if best is None else min(self.limit, best.value)) * (1 + beyond)

    def open_bundle(self, bound: float, node: Bundle | Entries) -> None:
        """Put what a bundle, or the next of its entries, is opened into in its place."""
        assert self.bundling is not None
        if isinstance(node, Entries) and not node.skip(self._knows):
            return
        for least, opened in self.bundling.opened(bound, node, self.below):
            self._push(least, opened)

    def make_member(self, bound: float, pending: Pending) -> None:
        """Put a member with its tables in the place of one without."""
        member = member_of(pending.candidate, pending.sharding, self.costs, some_layers=pending.some_layers)
        if member is not None:
            self._push(max(bound, self.aim.member_bound(member)), member)

    def expand_choices(self, choices: ChunkChoices) -> None:
        """Put members with each number of chunks in the place of all, those left out whose memory can't fit."""
        self.result.n_members += len(choices.candidates) - len(choices.fitting)
        for member in choices.members(choices.fitting, self.costs):
            self._push(self.aim.member_bound(member), member)
        mesh = choices.candidates[0].mesh
        if not choices.fitting and not self.result.complete and mesh not in self.result.refused:
            member = next(choices.members(choices.candidates, self.costs))
            self.result.refuse(member.candidate, smallest_shortfall(member.candidate, member.tables))

    def try_member(self, member: Member) -> None:
        """Solve a member exactly, unless its memory can't fit whatever the stages."""
        result = self.result
        if result.complete and (self._has_rivals() or member.candidate.mesh in self.solved_meshes):
            # The best is proven, and this mesh has its runner-up or needs none.
            if self._looks_near() and least_shortfall_bytes(member) <= 0:
                self._try_near(member)
            return
        result.n_members += 1
        if least_shortfall_bytes(member) > 0:
            if not result.complete and member.candidate.mesh not in result.refused:
                result.refuse(member.candidate, smallest_shortfall(member.candidate, member.tables))
            return
        self.n_extra += result.complete
        result.n_solved += 1
        solved = self._solve(member)
        if isinstance(solved, MemoryShortfall):
            if not result.complete:
                result.refuse(member.candidate, solved)
            return
        if math.isinf(solved.value):
            return
        self.solved_meshes.add(member.candidate.mesh)
        if result.best is self.begin and self.begin is not None and solved.value <= self.begin.value * (1 + RELATIVE_TIE):
            result.best = None
        result.take(solved)

    def _has_rivals(self) -> bool:
        """Return True if losers of enough meshes are known, or enough were looked for."""
        looked = self.n_extra >= MAX_EXTRA_MEMBERS or self.n_beyond >= MAX_EXTRA_NODES
        return looked or len(self.solved_meshes) > MIN_ALTERNATIVES

    def _looks_near(self) -> bool:
        """Return True while plans within reach of the proven best are looked for."""
        most = MOST_NEAR_BUNDLES if self._gathers else MOST_NEAR_NODES
        return self.reach > 0.0 and not self.result.all_near and self.n_beyond < most

    def _try_near(self, member: Member) -> None:
        """Solve a member for the plans within reach, unless one of its kind is known."""
        result = self.result
        assert result.best is not None, "what is near is near the best"
        if self._knows(member.candidate):
            return
        solved = self._solve(member)
        if isinstance(solved, Solved) and solved.value <= result.best.value * (1 + self.reach):
            result.near.append(solved)

    def _knows(self, candidate: Candidate) -> bool:
        """Return True if the best is proven and a plan of the candidate's kind is known within reach."""
        result = self.result
        if not result.complete or result.best is None:
            return False
        known, limit = (result.best, *result.alternatives, *result.near), result.best.value * (1 + self.reach)
        if len(known) != self._n_kinds_of:
            self._n_kinds_of = len(known)
            self._kinds = {each.decision.candidate.kind for each in known if each.value <= limit}
        return candidate.kind in self._kinds

    def try_thrifty(self, stop: Stop) -> None:
        """Once the best is proven in bundles, which solve few members, solve some that leave more memory or take less energy.

        ZeRO-1 saves memory and sends no more than ZeRO-0 (Rajbhandari et al. 2020, section 7); what leaves most is the smallest
        micro-batch and recomputation, at other degrees.
        """
        best = self.result.best
        if not (self._gathers and self.result.complete and best is not None):
            return
        n_tried, longest = 0, SLOWEST_THRIFTY * best.value
        for member in self._plain_members(longest):
            if n_tried == MAX_EXTRA_MEMBERS or stop():
                return
            bound = self.aim.member_bound(member)
            if bound <= longest and least_shortfall_bytes(member) <= 0 and not self._knows(member.candidate):
                n_tried += 1
                solved = self._solve(member)
                if isinstance(solved, Solved) and solved.value <= longest:
                    self.result.alternatives.append(solved)

    def _plain_members(self, longest: float) -> Iterator[Member]:
        """Yield plain members of each mesh's family that saves most, meshes in the order of their bounds, none beyond
        ``longest``."""
        for _, bound, family in sorted(self._savers.values(), key=itemgetter(1)):
            if bound <= longest:
                yield from _plain_members_of(family, self.costs)

    def _take_note(self, family: CandidateFamily, bound: float) -> None:
        """Take note of a mesh's family of the smallest micro-batch, of several that with the lowest bound."""
        known = self._savers.get(family.mesh)
        if Bundling.suits(family) and (known is None or (family.microbatch, bound) < known[:2]):
            self._savers[family.mesh] = (family.microbatch, bound, family)

    def progress(self, bound: float, describe: Describe | None) -> Progress:
        """Where the search stands."""
        best, note = self.result.best, f"{self.result.n_solved} partitions solved"
        total = self.n_popped + len(self.heap)
        if best is None:
            return Progress(self.n_popped, total, None, bound, note)
        now = replace(self.result, bound=min(bound, best.value))
        incumbent = None if describe is None else partial(describe, now)
        return Progress(self.n_popped, total, best.value, bound, note, incumbent)

    def finish(self) -> SearchResult:
        """The result with its proven bound: the best itself when complete, else the lowest bound that is left."""
        result = self.result
        result.complete = result.complete or not self.heap
        result.all_near = self._keeps_near and (result.all_near or (result.best is not None and not self.heap))
        left = self.heap[0][0] if self.heap else math.inf
        if result.best is not None:
            result.bound = result.best.value if result.complete else min(left, result.best.value)
        elif self.heap:
            result.bound = left
        return result

    def _solve(self, member: Member) -> Solved | MemoryShortfall:
        decision = cut(member, self.costs, self.holds)
        if isinstance(decision, MemoryShortfall):
            return decision
        cost = evaluate_decision(decision, member.tables)
        return Solved(decision, cost, self.aim.value(decision, cost, member.tables))

    def _push(self, bound: float, node: _Node, order: int | None = None) -> None:
        """Have a node wait under its bound, behind those of the same bound that were made before it."""
        if not math.isinf(bound):
            heapq.heappush(self.heap, (bound, next(self._order) if order is None else order, node))

    def _out_of_work(self) -> bool:
        return self.max_solved is not None and self.result.n_solved >= self.max_solved


_Node = _Unlisted | _Unpriced | CandidateFamily | Bundle | Entries | Pending | ChunkChoices | Member


def decision_tables(decision: Decision, costs: TrainingCosts) -> tuple[StageTable, ...]:
    """Cost table of each pipeline rank of a decision."""
    return costs.stage_tables(decision.candidate, decision.sharding, costs.stage_kinds(decision.candidate))


# Candidates whose memory suffices under no sharding, found without trying each: a model with several distinct blocks has the
# product of their frontiers as its shardings, thousands where blocks have tens.


def crowded_candidates(
    candidates: tuple[Candidate, ...], shardings: tuple[Sharding, ...], kinds: tuple[StageKind, ...], costs: TrainingCosts
) -> tuple[Sharding, tuple[Candidate, ...]]:
    """The sharding that keeps least in memory, and which of candidates that differ in schedule alone fit under none.

    Relaxed: every block has the least of each kind of memory that any of its own shardings takes. Where that is as much work as
    to try them (one sharding, or one distinct block), no candidate is called crowded.
    """
    samples = _every_choice_once(shardings)
    if len(samples) == len(shardings):
        return shardings[0] if shardings else (), ()
    tables = {sharding: costs.stage_tables(candidates[0], sharding, kinds) for sharding in samples}
    kept = {
        (block, choice): _kept_bytes(tables[sharding][0], costs.layer_block == block)
        for sharding in samples
        for block, choice in enumerate(sharding)
    }
    roomiest = min(shardings, key=lambda sharding: sum(kept[item] for item in enumerate(sharding)))
    least = _least_of_each(list(tables.values()))
    crowded = tuple(candidate for candidate in candidates if smallest_shortfall(candidate, least).lacking_bytes > 0)
    return roomiest, crowded


def _every_choice_once(shardings: tuple[Sharding, ...]) -> list[Sharding]:
    """Some of the shardings in which every block has each of its choices."""
    seen: set[tuple[int, tuple[int, ...]]] = set()
    samples = []
    for sharding in shardings:
        new = set(enumerate(sharding)) - seen
        if new:
            samples.append(sharding)
            seen |= new
    return samples


def _kept_bytes(table: StageTable, layers: npt.NDArray[np.bool_]) -> float:
    """Return the bytes that these layers keep with one micro-batch in flight, under the recompute mode that keeps least."""
    return float((table.static_bytes + table.activation_bytes.min(axis=0))[layers].sum())


def _least_of_each(tables: list[tuple[StageTable, ...]]) -> tuple[StageTable, ...]:
    """By stage position, the least of each kind of memory over the tables; equal positions share one object."""
    made: dict[StageTable, StageTable] = {}
    for position, table in enumerate(tables[0]):
        if table not in made:
            here = [of_sharding[position] for of_sharding in tables]
            made[table] = replace(
                table,
                static_bytes=np.min([t.static_bytes for t in here], axis=0),
                activation_bytes=np.min([t.activation_bytes for t in here], axis=0),
                transient_bytes=np.min([t.transient_bytes for t in here], axis=0),
            )
    return tuple(made[table] for table in tables[0])
