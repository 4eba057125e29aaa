"""A family's members in arrays: their bounds by place of state, by choice of the main block, and whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.pipeline import n_copies
from meshwright.solver.blocks.setting import BlockSetting
from meshwright.solver.blocks.sharding_problem import Criterion
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.training.costs.evaluate import FloatArray, Sharding, StageKind, units_in_flight
from meshwright.solver.training.costs.part_borders import cuts_of
from meshwright.solver.training.search.aims import BoundedMembers, Pending
from meshwright.solver.training.search.bounds import (
    Laid,
    Rows,
    ScheduleWay,
    SharedFigures,
    begin_pipelines,
    joined,
    laid,
    shown_sends_s,
    with_least,
)
from meshwright.solver.training.search.bundle_kernels import (
    ROUNDING,
    any_borders_bounds,
    even_borders_bounds,
    some_layers_bounds,
    some_of_parts_bounds,
)
from meshwright.solver.training.space.candidates import Candidate, CandidateFamily
from meshwright.solver.training.space.state_places import StatePlace

SHARDINGS_AT_ONCE = 4096
"""Whole shardings that are bounded between two looks at the stopping rule: models of several unlike blocks have millions."""

# The least work of each sharding: what bounds a schedule before its memory and sends are looked at.


@dataclass(frozen=True, eq=False)
class LeastWork:
    """The least time of a micro-batch through all layers of each sharding, infinite where memory with one in flight can't
    suffice, by the modes that stages may choose from; and the least of these."""

    work_s: dict[tuple[Recompute, ...], FloatArray]
    least_s: dict[tuple[Recompute, ...], float]

    @classmethod
    def of(cls, of: Laid, sets: Sequence[tuple[Recompute, ...]], *, among: Sequence[Recompute], n_stages: int) -> LeastWork:
        """Return what layouts take under each of some sets of modes, which are ``among`` those of the layouts."""
        work_s = {}
        capacity = n_stages * float(of.capacity_bytes.max()) * (1.0 + ROUNDING)
        kept_bytes = of.kept_bytes + of.static_bytes[:, None]
        for modes in dict.fromkeys(sets):
            chosen = [among.index(mode) for mode in modes]
            crowded = kept_bytes[:, chosen].min(axis=(0, 1)).sum(axis=-1) > capacity
            work_s[modes] = np.where(crowded, np.inf, of.time_s[:, chosen].min(axis=(0, 1)).sum(axis=-1))
        return cls(work_s, {modes: float(each.min()) for modes, each in work_s.items()})

    def passes(
        self, modes: tuple[Recompute, ...], waiting: Callable[[], float], *, pp: int, n_microbatches: int, below: float
    ) -> float:
        """Passes of all layers that a step under a schedule takes at least: its stages share the work evenly at best. It is
        asked how long it waits only where the work alone takes less than ``below``."""
        passes = n_microbatches / pp
        if passes * self.least_s[modes] < below:
            wait = waiting()
            passes = max(passes, wait + (n_microbatches - wait) / pp)
        return passes


class FamilyView:
    """A family's candidates and their costs in arrays."""

    def __init__(self, shared: SharedFigures, family: CandidateFamily):
        self.shared, self.family, self.costs = shared, family, shared.costs
        self.first = next(family.candidates())
        self.kinds = self.costs.stage_kinds(self.first)
        self.inside = tuple(dict.fromkeys(self.costs.inside(kind) for kind in self.kinds))
        self.kind_of_stage = np.array([self.inside.index(self.costs.inside(kind)) for kind in self.kinds], np.int64)
        self.choices = shared.choices_of(self.first, self.kinds)
        self.modes = tuple(dict.fromkeys(mode for modes in family.recompute for mode in modes))

    @cached_property
    def sends_s(self) -> FloatArray:
        """[stage] sends before any is hidden."""
        of_kind = {kind: self.costs.sends_s(self.first, kind) for kind in dict.fromkeys(self.kinds)}
        return np.array([of_kind[kind] for kind in self.kinds])

    def shown_sends_s(self, candidate: Candidate) -> tuple[FloatArray, FloatArray, FloatArray]:
        """`shown_sends_s` of a candidate."""
        of_kind = {kind: self.costs.hidden_sends_s(candidate, kind) for kind in dict.fromkeys(self.kinds)}
        return shown_sends_s(self.sends_s, np.array([of_kind[kind] for kind in self.kinds]), candidate.pipelining)

    def _at(self, place: StatePlace) -> Candidate:
        return self.first.at(place, self.modes)

    def rows(self, place: StatePlace) -> Rows:
        """Rows of a place of state."""
        candidate = self._at(place)
        of_kinds = []
        for kind in self.inside:
            of_devices = [self._synced_rows(candidate, kind, setting) for setting in self.costs.settings(candidate, kind)]
            *figures, capacities = zip(*of_devices, strict=True)
            of_kinds.append((*(np.max(each, axis=0) for each in figures), min(capacities)))
        return Rows(*(np.array(each, np.float64) for each in zip(*of_kinds, strict=True)))

    def _synced_rows(self, candidate: Candidate, kind: StageKind, setting: BlockSetting) -> tuple[FloatArray | float, ...]:
        vectors = self.shared.vectors(setting, self.choices)
        rows = self.costs.row_costs(
            candidate,
            kind,
            setting,
            vectors,
            beside=vectors,
            of_row=self.choices.of_row,
            copies=np.zeros(len(vectors)),
            mean_stage=None,
        )
        return (
            rows.time_s,
            rows.activation_bytes,
            rows.transient_bytes,
            rows.static_bytes,
            rows.extra_s,
            rows.first_bucket_s,
            rows.capacity_bytes,
        )

    def _bare(self) -> Laid:
        """The layouts of each choice of the main block in each place of state, one place after another, without what it takes
        to share and update state."""
        places = [self._at(place) for place in self.family.places]
        of_kinds, states, capacities = [], [], []
        for kind in self.inside:
            settings = self.costs.settings(self.first, kind)
            each = [self.shared.bare_rows(self.first, self.modes, setting, self.choices) for setting in settings]
            of_kinds.append([np.max(figures, axis=0) for figures in zip(*each, strict=True)])
            states.append([np.max([self._state_bytes(place, kind, s) for s in settings], axis=0) for place in places])
            # State that is sharded among all ranks asks for the fewest groups of them, and so the least buffers.
            roomiest = replace(self.first, shard_ranks=None)
            capacities.append(min(self.costs.capacity_bytes(roomiest, setting) for setting in settings))
        time_s, kept, transient = (np.array(figures) for figures in zip(*of_kinds, strict=True))
        nothing = np.zeros((len(self.inside), time_s.shape[-1]))
        of_layer = self.choices.by_main
        once = laid(
            Rows(time_s, kept, transient, nothing, nothing, nothing, np.array(capacities)).with_least(self.choices.of_row),
            of_layer,
        )
        static = with_least(np.array(states), self.choices.of_row)[:, :, of_layer]
        moved = np.array([place.offload.activations for place in self.family.places])
        again = self.costs.recomputable[self.costs.layer_block]
        stays = (1.0 - moved[:, None] * again).repeat(len(of_layer), axis=0)
        n_places = len(places)
        return Laid(
            np.tile(once.time_s, (1, 1, n_places, 1)),
            np.tile(once.kept_bytes, (1, 1, n_places, 1)) * stays,
            np.tile(once.transient_bytes, (1, 1, n_places, 1)),
            static.reshape(len(self.inside), -1, static.shape[-1]),
            np.tile(once.extra_s, (1, n_places, 1)),
            once.capacity_bytes,
        )

    def _state_bytes(self, candidate: Candidate, kind: StageKind, setting: BlockSetting) -> FloatArray:
        """[row] bytes of state on a device, at least."""
        each = self.shared.bytes_of_state(candidate, kind, setting)[:, self.choices.of_row]
        vectors = self.shared.vectors(setting, self.choices)
        held = vectors[:, Criterion.PARAMETERS] * each[0] + vectors[:, Criterion.EXPERT_PARAMETERS] * each[1]
        return np.asarray(held, np.float64)

    def _laid(self, place: StatePlace, shardings: Sequence[Sharding] | None = None) -> Laid:
        """The layouts of all choices of the main block, or of whole shardings."""
        rows = self.rows(place)
        if shardings is not None:
            return laid(rows, self.choices.of_shardings(shardings))
        return laid(rows.with_least(self.choices.of_row), self.choices.by_main)

    def least_of_places(self, below: float) -> FloatArray:
        """[place] bounds, without what it takes to share and update state; worked out only as far as less than ``below``."""
        of, n_places = self._bare(), len(self.family.places)
        work, floors = self._floors(of, below)
        promising: npt.NDArray[np.bool_] = np.any(floors < below, axis=1)
        least: FloatArray = np.min(floors[~promising], axis=0, initial=np.inf)
        for way, floor in zip(itertools.compress(self._ways, promising), floors[promising], strict=True):
            # What is no less than the least of its place so far changes nothing.
            limit = np.where(floor < np.inf, np.minimum(below, least), -np.inf)
            if (floor < limit).any():
                bounds = self._bounds(of, work, way, limit).reshape(n_places, -1).min(axis=1)
                least = np.minimum(least, np.where(floor < np.inf, bounds, np.inf))
            else:
                least = np.minimum(least, floor)
        return least

    def _floors(self, of: Laid, below: float) -> tuple[LeastWork, FloatArray]:
        """The least work, and [way, place] bounds by it alone, infinite where a place does not suit a way."""
        # Of some layers: times of the mode none and, in a pipeline, memory of the mode full: enough where that is too slow.
        asked = [way.modes for way in self._ways if way.is_bounded_by_work]
        work = LeastWork.of(of, asked, among=self.modes, n_stages=len(self.kinds))
        n_places = len(self.family.places)
        of_place = {modes: each.reshape(n_places, -1).min(axis=1) for modes, each in work.work_s.items()}
        floors = np.full((len(self._ways), n_places), -np.inf)
        for row, way in zip(floors, self._ways, strict=True):
            if way.is_bounded_by_work:
                np.multiply(of_place[way.modes], self._passes(work, way, below), out=row)
        for row, suiting in zip(floors, self._suiting, strict=True):
            row[~suiting] = np.inf
        return work, floors

    def _passes(self, work: LeastWork, way: ScheduleWay, below: float) -> float:
        """Passes of all layers that the step of a way takes at least, if it may take less than ``below``."""
        waits = partial(self.shared.waiting_of, self.first, way.pipelining, way.modes[0])
        return work.passes(way.modes, waits, pp=self.first.mesh.pp, n_microbatches=self.first.n_microbatches, below=below)

    def _bounds(self, of: Laid, work: LeastWork, way: ScheduleWay, below: FloatArray) -> FloatArray:
        """[sharding] bounds of a way; what is no less than ``below`` [place] is not worked out further."""
        limit = below.repeat(len(self.choices.by_main))
        if not way.is_bounded_by_work:
            return some_layers(self, of, self.candidate(way), limit)
        least: FloatArray = self._passes(work, way, float(below.max())) * work.work_s[way.modes]
        limit[least >= limit] = -np.inf
        bounds = some_layers if way.some_layers else schedule_bounds
        return np.maximum(least, bounds(self, of, self.candidate(way), limit))

    @cached_property
    def _suiting(self) -> list[npt.NDArray[np.bool_]]:
        """By way, which places of state suit it."""
        schedules = dict.fromkeys(way.pipelining.schedule for way in self._ways)
        of_schedule = {each: np.array([place.suits(each) for place in self.family.places]) for each in schedules}
        still = np.array([not place.offload.activations for place in self.family.places])
        return [still if way.some_layers else of_schedule[way.pipelining.schedule] for way in self._ways]

    def candidate(self, way: ScheduleWay) -> Candidate:
        """The candidate of a way, of any place of state."""
        whole = self.first.choices.with_layers(None)
        choices = whole.with_layers() if way.some_layers and self.first.mesh.pp > 1 else whole
        return replace(self.first, pipelining=way.pipelining, recompute=way.modes, choices=choices)

    @cached_property
    def _ways(self) -> tuple[ScheduleWay, ...]:
        return self.shared.ways_of(self.family)

    def entries(self, below: float) -> list[BoundedMembers]:
        """Entries that may beat ``below``, lowest bound first; of all others the first alone."""
        n_main, places = len(self.choices.by_main), self.family.places
        everything = joined([self._laid(place) for place in places])
        found: list[BoundedMembers] = []
        losing: list[BoundedMembers] = []
        work, floors = self._floors(everything, below)
        promising: npt.NDArray[np.bool_] = np.any(floors < below, axis=1)
        for way, floor, may_win in zip(self._ways, floors, promising, strict=True):
            if may_win:
                bounds = self._bounds(everything, work, way, np.where(floor < np.inf, below, -np.inf))
            elif found or losing or not floor.min() < np.inf:
                continue
            else:
                bounds = self._passes(work, way, below) * work.work_s[way.modes]
            by_place = np.where((floor < np.inf)[:, None], bounds.reshape(len(places), n_main), np.inf)
            taken = np.argwhere(by_place < below)
            if not len(taken) and not losing and np.isfinite(by_place.min()):
                taken = np.array([np.unravel_index(int(by_place.argmin()), by_place.shape)])
            if not len(taken):
                continue
            scheduled = self.candidate(way)
            for at, choice in taken:
                bound = float(by_place[at, choice])
                candidate = scheduled.at(places[at], scheduled.recompute)
                entry = BoundedMembers(bound, candidate, self.choices.rows[self.choices.main][choice], way.some_layers)
                (found if bound < below else losing).append(entry)
        return sorted(found or losing, key=lambda entry: entry.bound)

    def members(self, entry: BoundedMembers, below: float) -> Iterator[tuple[float, Pending]]:
        """Yield the members of an entry that may fit, with their bounds. Raises SearchStopped between some and the next."""
        bounds_of = some_layers if entry.some_layers else schedule_bounds
        for shardings in self.choices.with_main(entry.main, at_once=SHARDINGS_AT_ONCE):
            self.costs.heed()
            of, limit = self._laid(entry.candidate.place, shardings), np.full(len(shardings), below)
            for bound, sharding in zip(bounds_of(self, of, entry.candidate, limit), shardings, strict=True):
                if bound < np.inf:
                    yield max(entry.bound, float(bound)), Pending(entry.candidate, sharding, entry.some_layers)


def schedule_bounds(view: FamilyView, of: Laid, candidate: Candidate, below: FloatArray) -> FloatArray:
    """[sharding] bounds of a candidate, whatever its place of state; not worked out further than ``below`` [sharding]."""
    choice, m = candidate.pipelining, candidate.n_microbatches
    modes = np.array([view.modes.index(mode) for mode in candidate.recompute], np.int64)
    waiting = view.shared.waiting_of(candidate, choice, candidate.recompute[0])
    sends_s, _, beside_s = view.shown_sends_s(candidate)
    if choice.any_borders:
        in_flight = np.array(units_in_flight(candidate)[0], np.int64)
        of_any: FloatArray = any_borders_bounds(
            of.time_s,
            of.kept_bytes,
            of.transient_bytes,
            of.static_bytes,
            of.extra_s,
            view.kind_of_stage,
            sends_s,
            beside_s,
            of.capacity_bytes,
            in_flight,
            modes,
            np.array(begin_pipelines(view.costs.dag), np.int64),
            view.costs.dag is None or len(view.kinds) == 1,
            m,
            waiting,
            below,
        )
        return of_any
    (mode,) = modes
    copies = n_copies(choice.schedule)
    arguments: tuple[Any, ...] = (*_of_even_parts(view, of, candidate), copies, mode, m, waiting, below)
    of_even: FloatArray = even_borders_bounds(*arguments)
    return of_even


def _of_even_parts(view: FamilyView, of: Laid, candidate: Candidate) -> tuple[Any, ...]:
    """Return what kernels of even parts take first."""
    return (
        of.time_s,
        of.kept_bytes,
        of.transient_bytes,
        of.static_bytes,
        of.extra_s,
        view.kind_of_stage,
        *view.shown_sends_s(candidate),
        of.capacity_bytes,
        cuts_of(candidate.pipelining, of.time_s.shape[-1], candidate.mesh.pp),
        *view.shared.held(candidate),
    )


def some_layers(view: FamilyView, of: Laid, candidate: Candidate, below: FloatArray) -> FloatArray:
    """[sharding] bounds of a model that recomputes as few layers of each part as fit."""
    none, full = (view.modes.index(mode) for mode in (Recompute.NONE, Recompute.FULL))
    again = view.costs.recomputed_layers
    if candidate.mesh.pp > 1:
        waiting = view.shared.waiting_of(candidate, candidate.pipelining, candidate.recompute[0])
        figures = _of_even_parts(view, of, candidate)
        arguments: tuple[Any, ...] = (*figures, again, none, full, candidate.n_microbatches, waiting, below)
        of_parts: FloatArray = some_of_parts_bounds(*arguments)
        return of_parts
    bounds: FloatArray = some_layers_bounds(
        of.time_s,
        of.kept_bytes,
        of.transient_bytes,
        of.static_bytes,
        of.extra_s,
        of.capacity_bytes,
        again,
        none,
        full,
        candidate.n_microbatches,
    )
    return bounds
