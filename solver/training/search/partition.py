"""Stage borders and recompute modes of one member: by the exact stage partition, or the best even cut into chunks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypedDict

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.layer_dag import LayerDag, downsets
from meshwright.solver.stages import Pinned, barred, memory_shortage, partition_layers
from meshwright.solver.stages.longest import FoundPartition, least_objective
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Decision, FloatArray, StageSpan, StageTable, units_in_flight
from meshwright.solver.training.costs.part_borders import EvenCuts, FirstLayers, cost_even_cuts, fastest_that_fits, roomiest
from meshwright.solver.training.search.bounds import Member
from meshwright.solver.training.space.candidates import Candidate

# Splits a graph of layers over the stages of a pipeline: each stage ends a downset (Piper, NeurIPS'21, section 4).
#
# The objective, its exact solution and the figures of layers are those of `solver.stages.layers`, which this equals on a
# chain.
# What a branching graph adds is what stages send and hold: a stage sends on every tensor that a later one reads, and holds
# those that its layers read beside their entries.

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

_Cut = tuple[int, int, int]
"""A stage: its config, and the downsets at which it starts and ends."""

MAX_DOWNSETS = 600
"""Two branches of 24 layers have 25 x 25; memory and time grow with the square."""


@dataclass(frozen=True, slots=True)
class DagFigures:
    """The figures of a pipeline: layers as in `partition_layers`, on each stage.

    time_s [stage, config, layer], static_bytes [layer], activation_bytes and transient_bytes [config, layer], extra_s
    [stage, layer], boundary_s and beside_s (of one tensor), step_s, capacity_bytes and in_flight [stage]; side_bytes is held
    for each micro-batch in flight of each tensor that a stage's layers read beside their entries. No stage holds more than
    ``most_parameters`` of the parameters [layer], nor a layer that it is ``barred`` from [stage, layer], where they are given.
    """

    time_s: Floats
    static_bytes: Floats
    activation_bytes: Floats
    transient_bytes: Floats
    extra_s: Floats
    boundary_s: Floats
    step_s: Floats
    beside_s: Floats
    capacity_bytes: Floats
    in_flight: Ints
    side_bytes: float
    parameters: Floats | None = None
    most_parameters: float = math.inf
    barred: Bools | None = None


@dataclass(frozen=True, slots=True)
class DagStage:
    """Layers of a stage, ascending, and its config."""

    layers: tuple[int, ...]
    config: int


@dataclass(frozen=True, slots=True)
class DagPartition:
    """The best split: stages in order, the time of a step, and how many limits of the longest stage were tried."""

    stages: tuple[DagStage, ...]
    objective_s: float
    limits_tried: int


def partition_dag(dag: LayerDag, figures: DagFigures, *, n_microbatches: int, waiting: float = 1.0) -> DagPartition | None:
    """The split of a graph of layers over a pipeline that takes least time a step; None when none fits in memory.

    Stage i takes the sum of its layers' times and ``boundary_s[i]`` for each tensor that goes on after it (the last stage and
    a chain's stages: once), and no less than ``beside_s[i]`` for each of these. Exact up to the rounding of sums. Equal splits:
    the first in a fixed order.

    Raises InvalidInputError for a graph with more than `MAX_DOWNSETS` downsets.
    """
    cuts = _cuts(dag)
    n_stages = len(figures.capacity_bytes)
    if n_stages > dag.n_layers:
        return None
    sums = _Sums(cuts, figures)
    fits = [sums.shortage_bytes(stage) <= 0.0 for stage in range(n_stages)]
    if figures.parameters is not None:
        held = cuts.inside @ figures.parameters
        fits = [fit & (held[None, :] - held[:, None] <= figures.most_parameters) for fit in fits]

    if figures.barred is not None:
        counts = [cuts.inside @ row.astype(np.int64) for row in figures.barred]
        fits = [fit & (count[None, :] == count[:, None]) for fit, count in zip(fits, counts, strict=True)]

    def solve_within(limit_s: float, below_s: float) -> FoundPartition[list[_Cut]] | None:
        tail = np.full(len(cuts.sets), np.inf)
        tail[0] = 0.0
        came: list[tuple[Ints, Ints]] = []
        for stage in range(n_stages):
            times_s, ways_s = sums.times_and_ways_s(stage)
            possible = fits[stage] & (times_s <= limit_s)
            base = np.maximum(tail[:, None], sums.extras_s(stage))
            values = np.where(possible, base[None] + waiting * ways_s, np.inf)
            config, source = _least(values)
            came.append((config, source))
            ends = np.arange(len(cuts.sets))
            tail = values[config, source, ends]
        if not tail[-1] < below_s:
            return None
        stages = _walked_back(came)
        longest = max(float(sums.times_and_ways_s(index)[0][cut]) for index, cut in enumerate(stages))
        return FoundPartition(longest, float(tail[-1]), stages)

    best = least_objective(solve_within, n_microbatches, waiting=waiting)
    if best is None:
        return None
    stages = tuple(DagStage(cuts.between(start, end), config) for config, start, end in best.choice)
    return DagPartition(stages, best.objective_s, best.limits_tried)


def dag_shortage(dag: LayerDag, figures: DagFigures) -> tuple[int, float, float]:
    """(stage, need, have) in bytes of the stage that is worst off in the split that lacks least, as `memory_shortage`."""
    cuts = _cuts(dag)
    sums = _Sums(cuts, figures)
    worst = np.full(len(cuts.sets), np.inf)
    worst[0] = -np.inf
    came: list[tuple[Ints, Ints]] = []
    for stage in range(len(figures.capacity_bytes)):
        values = np.maximum(worst[None, :, None], sums.shortage_bytes(stage))
        config, source = _least(values)
        came.append((config, source))
        worst = values[config, source, np.arange(len(cuts.sets))]
    shorts = [float(sums.shortage_bytes(index)[cut]) for index, cut in enumerate(_walked_back(came))]
    index = int(np.argmax(shorts))
    have = float(figures.capacity_bytes[index])
    return index, have + shorts[index], have


def _least(values: Floats) -> tuple[Ints, Ints]:
    """Config and start of the least value for each end; of equal ones the first start, then the first config."""
    n_configs, n_sets, _ = values.shape
    flat = values.transpose(1, 0, 2).reshape(n_sets * n_configs, n_sets)
    first = flat.argmin(axis=0)
    return first % n_configs, first // n_configs


@dataclass(frozen=True, eq=False)
class _Cuts:
    """Downsets in order; for each, which layers it holds and what goes on after it; for pairs, what lies between.

    inside   [set, layer]
    sent     [set] tensors that go on, at least one
    sides    [start, end] tensors read beside entries between two downsets
    nested   [start, end] whether the start is a proper part of the end
    """

    sets: tuple[frozenset[int], ...]
    inside: Bools
    sent: Floats
    sides: Floats
    nested: Bools

    def between(self, start: int, end: int) -> tuple[int, ...]:
        """Layers of the stage between two downsets."""
        return tuple(sorted(self.sets[end] - self.sets[start]))


@lru_cache(maxsize=8)
def _cuts(dag: LayerDag) -> _Cuts:
    sets = downsets(dag, most=MAX_DOWNSETS)
    if sets is None:
        raise InvalidInputError(
            "the model branches in too many ways to cut it into stages",
            allowed=f"{MAX_DOWNSETS} sets of layers that can run before the others",
            remedy="put short branches into one block",
        )
    inside = np.zeros((len(sets), dag.n_layers), dtype=bool)
    for index, done in enumerate(sets):
        inside[index, sorted(done)] = True
    sizes = inside.sum(axis=1)
    nested: Bools = np.asarray((inside[:, None, :] <= inside[None, :, :]).all(axis=2) & (sizes[:, None] < sizes[None, :]))
    tensors = sorted({side for sides in dag.sides for side in sides})
    sides = np.zeros(nested.shape)
    for tensor in tensors:
        readers = np.array([tensor in dag.sides[layer] for layer in range(dag.n_layers)])
        # A stage reads the tensor where its end holds more readers than its start.
        counts = inside[:, readers].sum(axis=1)
        sides += counts[None, :] > counts[:, None]
    sent = np.array([max(1, dag.sent_after(done)) for done in sets], dtype=np.float64)
    return _Cuts(tuple(sets), inside, sent, sides, nested)


class _Sums:
    """Figures of every stage that lies between two downsets: sums over sets are differences of sums over downsets."""

    def __init__(self, cuts: _Cuts, figures: DagFigures):
        self.cuts = cuts
        self.figures = figures
        inside = cuts.inside.astype(np.float64)
        self._time = figures.time_s @ inside.T
        self._extra = figures.extra_s @ inside.T
        self._static = figures.static_bytes @ inside.T
        self._activation = figures.activation_bytes @ inside.T
        self._transient = np.array([_largest_between(cuts, row) for row in figures.transient_bytes])

    def times_and_ways_s(self, stage: int) -> tuple[Floats, Floats]:
        """[config, start, end] steady time of a micro-batch, and its own way through the stage, which has what goes on beside
        in it; infinite where the end does not hold the start."""
        time = self._time[stage]
        taken = time[:, None, :] - time[:, :, None] + self.figures.boundary_s[stage] * self.cuts.sent
        taken = np.where(self.cuts.nested, taken, np.inf)
        if not self.figures.beside_s[stage]:
            return taken, taken
        beside_s = self.figures.beside_s[stage] * self.cuts.sent
        return np.maximum(taken, beside_s), taken + beside_s

    def extras_s(self, stage: int) -> Floats:
        """[start, end] what a stage adds once a step."""
        extra = self._extra[stage]
        return np.asarray(extra[None, :] - extra[:, None] + self.figures.step_s[stage])

    def shortage_bytes(self, stage: int) -> Floats:
        """[config, start, end] memory needed beyond the capacity."""
        figures, held = self.figures, self._activation
        activation = held[:, None, :] - held[:, :, None] + figures.side_bytes * self.cuts.sides
        static = self._static[None, :] - self._static[:, None]
        need = static + figures.in_flight[stage] * activation + self._transient
        return np.where(self.cuts.nested, need - figures.capacity_bytes[stage], np.inf)


def _largest_between(cuts: _Cuts, figures: Floats) -> Floats:
    """[start, end] largest figure of the layers between two downsets; 0 where there are none."""
    largest = np.zeros(cuts.nested.shape)
    for layer in np.argsort(figures, kind="stable"):
        within = ~cuts.inside[:, layer, None] & cuts.inside[None, :, layer]
        largest[within] = figures[layer]
    return largest


def _walked_back(came: list[tuple[Ints, Ints]]) -> list[_Cut]:
    """The stages that lead to the whole graph."""
    stages: list[_Cut] = []
    end = -1
    for config, source in reversed(came):
        stages.append((int(config[end]), int(source[end]), end))
        end = int(source[end])
    return stages[::-1]


@dataclass(frozen=True, slots=True)
class MemoryShortfall:
    """Why a member does not fit: the stage that is worst off in its roomiest split (framework overhead not counted)."""

    stage: int
    need_bytes: float
    have_bytes: float

    @property
    def lacking_bytes(self) -> float:
        """Memory that is missing."""
        return self.need_bytes - self.have_bytes


class _Limited(TypedDict, total=False):
    """Arguments that every partitioner takes for a limit."""

    parameters: FloatArray
    most_parameters: float


class _Costs(TypedDict):
    """Arguments that every partitioner takes alike."""

    time_s: FloatArray
    static_bytes: FloatArray
    activation_bytes: FloatArray
    transient_bytes: FloatArray
    extra_s: FloatArray
    boundary_s: FloatArray
    step_s: FloatArray
    beside_s: FloatArray


@dataclass(frozen=True, eq=False)
class ParameterLimit:
    """Parameters of each layer [layer], of which no device of a stage has a part of more than ``most``."""

    parameters: FloatArray
    most: float

    def of_stage(self, candidate: Candidate) -> float:
        """The most that a stage of a candidate may hold."""
        return self.most * candidate.mesh.stage_devices


@dataclass(frozen=True, eq=False)
class StageLimits:
    """What stages may hold beside what memory says: the parameters of an exchange, and layers that are pinned to a stage."""

    parameters: ParameterLimit | None = None
    pinned: Sequence[Pinned] = ()

    def allowed(self, candidate: Candidate, costed: EvenCuts) -> Bools:
        """[cut] True for the even cuts that keep them."""
        kept = np.ones(len(costed.cuts), bool)
        if self.parameters is not None:
            held = costed.sums_of_ranks(self.parameters.parameters)
            kept &= np.all(held <= self.parameters.of_stage(candidate), axis=1)
        for each in self.pinned:
            mine = np.zeros(int(costed.cuts[0, -1]))
            mine[list(each.layers)] = 1.0
            kept &= costed.sums_of_ranks(mine)[:, each.place(candidate.mesh.pp)] == len(each.layers)
        return kept


UNLIMITED = StageLimits()
"""Of stages that hold whatever fits."""


def cut(member: Member, costs: TrainingCosts, limit: ParameterLimit | None = None) -> Decision | MemoryShortfall:
    """The fastest decision of a member that fits, keeps the limit and has layers on the stages that the request names, or by
    how much the roomiest of all lack memory."""
    candidate, tables, limits = member.candidate, member.tables, StageLimits(limit, costs.pinned)
    if not candidate.choices.lacks_layers:
        spans = partition_stages(candidate, tables, limits)
        return spans if isinstance(spans, MemoryShortfall) else Decision(candidate, member.sharding, spans)
    found = partition_some_layers(candidate, tables, costs.recomputed_layers, costs.allowed_layers, limits)
    if isinstance(found, MemoryShortfall):
        return found
    return Decision(candidate.of_first_layers(found.number), member.sharding, found.spans)


def partition_stages(
    candidate: Candidate, tables: tuple[StageTable, ...], limits: StageLimits = UNLIMITED
) -> tuple[StageSpan, ...] | MemoryShortfall:
    """The fastest stages that fit and keep the limits, or by how much the roomiest of all lack memory."""
    if not candidate.pipelining.any_borders:
        return _even_parts(candidate, tables, limits)
    if tables[0].dag is not None:
        return _parts_of_branches(candidate, tables, tables[0].dag, limits)
    found = partition_layers(
        **_limited(candidate, limits.parameters),
        **_costs(candidate, tables),
        capacity_bytes=_capacities(tables),
        in_flight=_in_flight(candidate),
        n_microbatches=candidate.n_microbatches,
        waiting=tables[0].waiting,
        pinned=limits.pinned,
    )
    if found is None:
        return smallest_shortfall(candidate, tables)
    return tuple(StageSpan(stage.first, stage.last, candidate.recompute[stage.config]) for stage in found.stages)


@dataclass(frozen=True, slots=True)
class SomeLayers:
    """Even parts of which each recomputes its first layers whole, as many of those that can be, or all where it has fewer."""

    number: int
    spans: tuple[StageSpan, ...]


def partition_some_layers(
    candidate: Candidate,
    tables: tuple[StageTable, ...],
    again: npt.NDArray[np.bool_],
    allowed: tuple[int, ...] = (),
    limits: StageLimits = UNLIMITED,
) -> SomeLayers | MemoryShortfall:
    """The fastest even parts that recompute some of their layers, whose number is one of ``allowed`` if these are named.

    ``again`` [layer] says which layers can be recomputed. Each layer more takes longer, so for each cut the least number with
    which it fits is best.
    """
    costed = cost_even_cuts(candidate, tables)
    most = FirstLayers(0, again).most_in_a_part(costed.cuts)
    # What is left out with the least of both modes fits with no number.
    open_ = limits.allowed(candidate, costed) & (costed.need_bytes <= costed.capacity_bytes).all(axis=1)
    best_s, best, number = np.inf, -1, 0
    for n in allowed or range(1, int(most.max())):
        # With all of their layers, parts are those of the mode full.
        trying = open_ & (n < most)
        if not trying.any():
            continue
        of_number = cost_even_cuts(candidate, tables, FirstLayers(n, again))
        fits = trying & (of_number.need_bytes <= of_number.capacity_bytes).all(axis=1)
        step_s = np.where(fits, of_number.step_s, np.inf)
        fastest = int(np.argmin(step_s))
        if step_s[fastest] < best_s:
            best_s, best, number = float(step_s[fastest]), fastest, n
        open_ &= ~fits & (of_number.step_s < best_s)
    if best < 0:
        return _shortfall(costed)
    borders, ends = costed.cuts[best].tolist(), FirstLayers(number, again).ends(costed.cuts[best : best + 1])[0].tolist()
    spans = (
        StageSpan(first, end - 1, Recompute.FULL, kept_from=kept_from)
        for (first, end), kept_from in zip(itertools.pairwise(borders), ends, strict=True)
    )
    return SomeLayers(number, tuple(spans))


def _limited(candidate: Candidate, limit: ParameterLimit | None) -> _Limited:
    return _Limited() if limit is None else _Limited(parameters=limit.parameters, most_parameters=limit.of_stage(candidate))


def _even_parts(
    candidate: Candidate, tables: tuple[StageTable, ...], limits: StageLimits
) -> tuple[StageSpan, ...] | MemoryShortfall:
    costed = cost_even_cuts(candidate, tables)
    best = fastest_that_fits(costed, limits.allowed(candidate, costed))
    if best is None:
        return _shortfall(costed)
    borders = costed.cuts[best].tolist()
    (mode,) = candidate.recompute
    return tuple(StageSpan(first, end - 1, mode) for first, end in itertools.pairwise(borders))


def _parts_of_branches(
    candidate: Candidate, tables: tuple[StageTable, ...], dag: LayerDag, limits: StageLimits
) -> tuple[StageSpan, ...] | MemoryShortfall:
    figures = replace(_dag_figures(candidate, tables), **_limited(candidate, limits.parameters))
    if limits.pinned:
        figures = replace(figures, barred=barred(limits.pinned, candidate.mesh.pp, dag.n_layers))
    found = partition_dag(dag, figures, n_microbatches=candidate.n_microbatches, waiting=tables[0].waiting)
    if found is None:
        return MemoryShortfall(*dag_shortage(dag, figures))
    return tuple(
        StageSpan(stage.layers[0], stage.layers[-1], candidate.recompute[stage.config], stage.layers) for stage in found.stages
    )


def _dag_figures(candidate: Candidate, tables: tuple[StageTable, ...]) -> DagFigures:
    return DagFigures(
        **_costs(candidate, tables),
        capacity_bytes=np.array([max(0.0, table.capacity_bytes) for table in tables]),
        in_flight=np.array(units_in_flight(candidate)[0], np.int64),
        side_bytes=tables[0].side_bytes,
    )


def _costs(candidate: Candidate, tables: tuple[StageTable, ...]) -> _Costs:
    return _Costs(
        time_s=np.array([table.time_s for table in tables]),
        static_bytes=tables[0].static_bytes,
        activation_bytes=_activation_bytes(candidate, tables),
        transient_bytes=tables[0].transient_bytes,
        extra_s=np.array([table.extra_s for table in tables]),
        boundary_s=np.array([table.boundary_s for table in tables]),
        step_s=np.array([table.step_s if position else 0.0 for position, table in enumerate(tables)]),
        beside_s=np.array([table.beside_s for table in tables]),
    )


def smallest_shortfall(candidate: Candidate, tables: tuple[StageTable, ...]) -> MemoryShortfall:
    """The fullest stage of the split and recompute modes that lack least memory."""
    if not candidate.pipelining.any_borders:
        return _shortfall(cost_even_cuts(candidate, tables))
    if tables[0].dag is not None:
        return MemoryShortfall(*dag_shortage(tables[0].dag, _dag_figures(candidate, tables)))
    shortage = memory_shortage(
        static_bytes=tables[0].static_bytes,
        activation_bytes=_activation_bytes(candidate, tables),
        transient_bytes=tables[0].transient_bytes,
        capacity_bytes=_capacities(tables),
        in_flight=_in_flight(candidate),
    )
    assert shortage is not None, "the space has no more stages than layers"
    return MemoryShortfall(shortage.stage, shortage.need_bytes, shortage.have_bytes)


def _shortfall(costed: EvenCuts) -> MemoryShortfall:
    cut, rank = roomiest(costed)
    return MemoryShortfall(rank, float(costed.need_bytes[cut, rank]), float(costed.capacity_bytes[rank]))


def _capacities(tables: tuple[StageTable, ...]) -> npt.NDArray[np.generic]:
    return np.array([max(0.0, table.capacity_bytes) for table in tables])


def _in_flight(candidate: Candidate) -> npt.NDArray[np.generic]:
    return np.array(units_in_flight(candidate)[0], np.int64)


def _activation_bytes(candidate: Candidate, tables: tuple[StageTable, ...]) -> FloatArray:
    """Of one of the units that are in flight."""
    return tables[0].activation_bytes / units_in_flight(candidate)[1]
