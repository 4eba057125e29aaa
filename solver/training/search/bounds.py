"""Lower bounds on the step time and the memory of families and members of the training search.

All relax stage borders. What unequal ranks can do together is bounded by their speeds: if rank r is at least ``slow_r`` times
slower than the fastest on every layer, stages of longest time t hold at most ``sum_r t / slow_r`` of the fastest rank's work.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.pipeline import ChunkCount, SendTiming, n_copies, positions_of_ranks
from meshwright.solver.blocks.setting import BlockSetting
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.layer_dag import LayerDag
from meshwright.solver.training.costs.block_costs import Combinations
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import FloatArray, Sharding, StageKind, StageTable, held_by_part, positions
from meshwright.solver.training.space.candidates import SOME_LAYERS, Candidate, CandidateFamily, RecomputedLayers
from meshwright.solver.training.space.schedules import Pipelining, least_waiting

# Costs of each block's choices of strategies in arrays, laid out over the layers of many shardings.

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Rows:
    """Costs of choices of strategies on each kind of stage, borders apart: [kind, mode, row] or [kind, row], [kind].

    Behind the rows of all choices of all blocks comes one for each block with the least of each figure over its choices.
    """

    time_s: FloatArray
    kept_bytes: FloatArray
    transient_bytes: FloatArray
    static_bytes: FloatArray
    extra_s: FloatArray
    first_bucket_s: FloatArray
    capacity_bytes: FloatArray

    def with_least(self, of_row: IntArray) -> Rows:
        """The same rows with the least of each block behind them."""
        return Rows(
            with_least(self.time_s, of_row),
            with_least(self.kept_bytes, of_row),
            with_least(self.transient_bytes, of_row),
            with_least(self.static_bytes, of_row),
            with_least(self.extra_s, of_row),
            with_least(self.first_bucket_s, of_row),
            self.capacity_bytes,
        )


def with_least(figures: FloatArray, of_row: IntArray) -> FloatArray:
    """Figures [..., row] with the least of each block behind them; rows lie in the order of the blocks that ``of_row`` says."""
    starts = np.flatnonzero(np.diff(of_row, prepend=-1))
    return np.concatenate([figures, np.minimum.reduceat(figures, starts, axis=-1)], axis=-1)


@dataclass(frozen=True, eq=False)
class Laid:
    """Rows laid out over the layers of some shardings: [kind, mode, sharding, layer], [kind, sharding, layer], [kind]."""

    time_s: FloatArray
    kept_bytes: FloatArray
    transient_bytes: FloatArray
    static_bytes: FloatArray
    extra_s: FloatArray
    capacity_bytes: FloatArray


def joined(parts: list[Laid]) -> Laid:
    """Shardings of several layouts after one another; of capacities the largest."""
    return Laid(
        np.concatenate([part.time_s for part in parts], axis=2),
        np.concatenate([part.kept_bytes for part in parts], axis=2),
        np.concatenate([part.transient_bytes for part in parts], axis=2),
        np.concatenate([part.static_bytes for part in parts], axis=1),
        np.concatenate([part.extra_s for part in parts], axis=1),
        np.max([part.capacity_bytes for part in parts], axis=0),
    )


@dataclass(frozen=True, eq=False)
class BlockChoices:
    """The choices of strategies of each distinct block that a family's shardings have, a row each, and these shardings."""

    combinations: Combinations
    rows: tuple[tuple[tuple[int, ...], ...], ...]
    main: int
    """The block that most layers have."""
    layer_block: IntArray

    @cached_property
    def of_row(self) -> IntArray:
        """[row] the block of each."""
        return np.array([block for block, choices in enumerate(self.rows) for _ in choices], np.int64)

    @cached_property
    def first_row(self) -> IntArray:
        """[block] its first row; behind the last, that of the first block's least."""
        return np.array([0, *np.cumsum([len(choices) for choices in self.rows])], np.int64)

    @cached_property
    def by_main(self) -> IntArray:
        """[choice of the main block, layer] rows, other blocks at their least."""
        n_rows = int(self.first_row[-1])
        others = n_rows + self.layer_block
        mine = self.first_row[self.main] + np.arange(len(self.rows[self.main]))
        return np.where(self.layer_block == self.main, mine[:, None], others)

    def of_shardings(self, shardings: Sequence[Sharding]) -> IntArray:
        """[sharding, layer] rows."""
        index = [{choice: i for i, choice in enumerate(choices)} for choices in self.rows]
        rows = [
            [self.first_row[block] + index[block][choice] for block, choice in enumerate(sharding)] for sharding in shardings
        ]
        return np.array(rows, np.int64)[:, self.layer_block]

    def with_main(self, choice: tuple[int, ...], *, at_once: int) -> Iterator[tuple[Sharding, ...]]:
        """Yield the shardings with a choice of the main block, so many at once: there may be millions."""
        left = iter(self.combinations.with_choice(self.main, choice))
        while some := tuple(itertools.islice(left, at_once)):
            yield some


def laid(rows: Rows, of_layer: IntArray) -> Laid:
    """Rows laid out over layers; what nothing runs beside counts to the first layer."""
    extra_s = rows.extra_s[:, of_layer]
    extra_s[:, :, 0] += rows.first_bucket_s[:, of_layer[:, 0]]
    return Laid(
        np.ascontiguousarray(rows.time_s[:, :, of_layer]),
        np.ascontiguousarray(rows.kept_bytes[:, :, of_layer]),
        np.ascontiguousarray(rows.transient_bytes[:, :, of_layer]),
        np.ascontiguousarray(rows.static_bytes[:, of_layer]),
        extra_s,
        rows.capacity_bytes,
    )


# Lower bounds on the time and memory of families and their members.

Alike = TypeVar("Alike", bound=Hashable)


@dataclass(frozen=True)
class Member:
    """A candidate with everything fixed but stage borders and each stage's recompute mode."""

    candidate: Candidate
    sharding: Sharding
    tables: tuple[StageTable, ...]


def launch_bound_s(family: CandidateFamily, costs: TrainingCosts) -> float:
    """Lower bound on the step time of a family by what the host takes to launch its kernels; at most `family_bound_s`."""
    mesh = family.mesh
    by_device = [
        costs.launch_layers_s(
            group.node.device,
            tp=mesh.tp,
            cp=mesh.cp,
            boundary=family.boundary,
            overlap=family.tp_overlap,
            n_slices=family.n_slices,
        )
        for group in costs.request.cluster.groups
    ]
    return _family_bound_s(family, costs, np.min(by_device, axis=0), equivalent=float(mesh.pp))


def operator_bound_s(family: CandidateFamily, costs: TrainingCosts) -> float | None:
    """Lower bound on the step time of a family by what its operators compute alone: nothing sent, nothing run again; None where
    a block can't be sharded its way."""
    return _layers_bound_s(family, costs, costs.least_operators_s)


def family_bound_s(family: CandidateFamily, costs: TrainingCosts) -> float | None:
    """Lower bound on the step time of a family: no memory limit, least recompute, no state communication; None where a block
    can't be sharded its way."""
    modes = frozenset(itertools.chain.from_iterable(family.recompute))
    return _layers_bound_s(family, costs, lambda setting: costs.fastest_layers_s(setting, modes))


def _layers_bound_s(
    family: CandidateFamily, costs: TrainingCosts, layers_s: Callable[[BlockSetting], FloatArray | None]
) -> float | None:
    """The bound that follows from the least time of each layer in a setting."""
    candidate = next(family.candidates())
    kinds = costs.stage_kinds(candidate)
    of_kind: dict[StageKind, FloatArray] = {}
    for kind in dict.fromkeys(kinds):
        by_device = [layers_s(setting) for setting in costs.settings(candidate, kind)]
        known = [layer_s for layer_s in by_device if layer_s is not None]
        if len(known) < len(by_device):
            return None
        # The slowest device of a stage decides its times.
        of_kind[kind] = np.max(known, axis=0)
    fastest = np.min(list(of_kind.values()), axis=0)
    equivalent = _equivalent_ranks(fastest, of_kind, kinds)
    return _family_bound_s(family, costs, fastest, equivalent=equivalent)


def _family_bound_s(family: CandidateFamily, costs: TrainingCosts, layer_s: FloatArray, *, equivalent: float) -> float:
    """The bound that follows from the least time of each layer on the fastest rank, and the host's work between steps."""
    return costs.least_step_host_s + _pipeline_bound_s(
        layer_s,
        family.n_microbatches,
        pp=family.mesh.pp,
        equivalent=equivalent,
        longest_s=float(layer_s.max()) / max(n_copies(choice.schedule) for choice in family.pipelinings),
        waiting=least_waiting(family.pipelinings),
    )


def member_bound_s(member: Member) -> float:
    """Lower bound on the step time of a member: its exact costs at the fastest position, borders and memory relaxed."""
    candidate, m = member.candidate, member.candidate.n_microbatches
    tables = tuple(dict.fromkeys(member.tables))
    by_table = {table: table.time_s.min(axis=0) for table in tables}
    layer_s = np.min(list(by_table.values()), axis=0)
    extra_s = np.min([table.extra_s for table in tables], axis=0)
    step_s = min(table.step_s for table in tables)
    boundary_s, beside_s = min(table.boundary_s for table in tables), min(table.beside_s for table in tables)
    pp = candidate.mesh.pp
    equivalent = float(pp)
    longest_s = max(beside_s, float(layer_s.max()) / n_copies(candidate.pipelining.schedule) + boundary_s)
    again_s = 0.0
    if candidate.choices.lacks_layers:
        each, number = least_recomputed(candidate, tables)
        of_layer_s = min(float((table.time_s[1] - table.time_s[0])[1:-1].min()) for table in tables)
        between = candidate.pipelining.chunks if pp > 2 else candidate.pipelining.chunks - 1
        of_rank_s = between * (each * float(layer_s[1:-1].min()) + number * of_layer_s)
        longest_s = max(longest_s, of_rank_s + boundary_s)
        again_s = (candidate.pipelining.n_parts(pp) - 2) * number * of_layer_s
    if len(tables) > 1:
        equivalent = _equivalent_ranks(layer_s, by_table, member.tables)
        if not candidate.pipelining.any_borders and not candidate.pipelining.borders:
            longest_s = max(longest_s, _longest_even_rank_s(candidate, [by_table[table] for table in member.tables]))
    # m t_i + d_i <= T for every stage i, t_i without what goes on beside it; so is their mean over stages. What goes on beside
    # adds once to each stage's way.
    extras = float(extra_s.sum()) + (pp - 1) * step_s
    mean = (m * (float(layer_s.sum()) + again_s + pp * boundary_s) + extras) / pp + beside_s
    pipeline_s = _pipeline_bound_s(
        layer_s,
        m,
        pp=pp,
        equivalent=equivalent,
        longest_s=longest_s,
        waiting=tables[0].waiting,
        again_s=again_s,
        boundary_s=boundary_s,
        beside_s=beside_s,
    )
    return max(mean, pipeline_s + float(extra_s[begin_pipelines(tables[0].dag)].min()))


def begin_pipelines(dag: LayerDag | None) -> list[int]:
    """Layers one of which a pipeline's first stage holds: the first, or of a model that branches those that read no other."""
    return [0] if dag is None else [layer for layer, reads in enumerate(dag.reads) if not reads]


def least_recomputed(candidate: Candidate, tables: Sequence[StageTable]) -> tuple[int, int]:
    """Of a candidate that recomputes some layers of each part: layers that each part between the first and the last holds at
    least, and how many of them are recomputed at least.

    The number is one for all parts, so that of any rank bounds it. ``tables`` are of the modes none and full.
    """
    pp, pipelining = candidate.mesh.pp, candidate.pipelining
    each = _least_even_layers(tables[0].time_s.shape[1], pipelining.n_parts(pp))
    if not each or pipelining.borders:
        return 0, 0
    static = min(float(table.static_bytes[1:-1].min()) for table in tables)
    kept = min(float(table.activation_bytes[0, 1:-1].min()) for table in tables)
    dropped = max(float((table.activation_bytes[0] - table.activation_bytes[1])[1:-1].max()) for table in tables)
    room = max(max(0.0, table.capacity_bytes) for table in tables)
    number = 1
    # The first rank holds most micro-batches, but one of its parts begins the model; all those of the second may be between.
    for rank, held in enumerate(held_by_part(candidate)[: min(2, pp - 1)]):
        between = held[:, 1:] if rank == 0 else held
        passes = float(between.sum(axis=1).max(initial=0.0))
        lacks = each * (between.shape[1] * static + passes * kept) - room
        if passes * dropped > 0:
            number = max(number, math.ceil(lacks / (passes * dropped)))
    return each, min(each, number)


def least_shortfall_bytes(member: Member) -> float:
    """Lower bound on what the fullest stage lacks: the mean over stages, with one micro-batch in flight; interleaved also what
    the first rank holds of the parts between the model's ends."""
    candidate = member.candidate
    tables = tuple(dict.fromkeys(member.tables))
    layers = np.min([(table.static_bytes + table.activation_bytes).min(axis=0) for table in tables], axis=0)
    mean = float(layers.sum()) / candidate.mesh.pp - max(table.capacity_bytes for table in tables)
    if candidate.pipelining.traits.chunk_count is not ChunkCount.ANY:
        return mean
    return max(mean, float(first_rank_lacks_bytes((candidate,), member.tables[0])[0]))


def host_suffices(member: Member) -> bool:
    """Return True if no stage of the member can need more host memory than its devices have, wherever the borders are.

    A stage holds no more there than all layers would, and no more than goes with what fits on the device: for each byte that
    stays, the share that is moved leaves a fixed number on the host.
    """
    offload = member.candidate.offload
    if offload.is_nothing:
        return True
    most = max(float(held.max()) for held in held_by_part(member.candidate))
    for table in dict.fromkeys(member.tables):
        parts = table.parts
        everything = float(parts.host_static_bytes.sum() + most * parts.host_activation_bytes.max(axis=0).sum())
        state = float(np.max(parts.host_static_bytes / np.maximum(table.static_bytes, 1.0)))
        moved = offload.activations / (1.0 - offload.activations) if offload.activations < 1.0 else math.inf
        beside_device = max(state, moved) * max(0.0, table.capacity_bytes)
        # Drives hold what all layers need, or are left out.
        on_drives = float(parts.nvme_bytes.sum())
        if min(everything, beside_device) > parts.host_capacity_bytes or on_drives > parts.nvme_capacity_bytes:
            return False
    return True


def first_rank_lacks_bytes(candidates: Sequence[Candidate], table: StageTable) -> FloatArray:
    """Lower bound on what the first rank of interleaved 1F1B lacks for its parts behind the first, for each of candidates that
    differ in the number of chunks alone.

    Its first backward waits until a micro-batch has passed all parts, by when pp micro-batches are in each part of the rank.
    """
    pp = candidates[0].mesh.pp
    n_layers = table.time_s.shape[1]
    each = np.array([_least_even_layers(n_layers, candidate.pipelining.n_parts(pp)) for candidate in candidates])
    behind = np.array([candidate.pipelining.chunks - 1 for candidate in candidates])
    of_layer = float(table.static_bytes[1:-1].min()) + pp * float(table.activation_bytes[:, 1:-1].min())
    return np.asarray(behind * each * of_layer - max(0.0, table.capacity_bytes), np.float64)


@dataclass(frozen=True, eq=False)
class EvenNeeds:
    """The most that a rank holds under even cuts of each of some schedules: ``[schedule]`` layers, passes at once, and layers
    of a part."""

    layers: FloatArray
    passes: FloatArray
    of_part: FloatArray

    @classmethod
    def of(cls, candidates: Sequence[Candidate], n_layers: int) -> EvenNeeds:
        """Return what ranks hold under the candidates' schedules."""
        of_part = np.array([-(-n_layers // c.pipelining.n_parts(c.mesh.pp)) + 1 for c in candidates], np.float64)
        passes = [max(float(rows.sum(axis=1).max()) for rows in held_by_part(c)) for c in candidates]
        return cls(of_part * [c.pipelining.chunks for c in candidates], np.array(passes), of_part)

    def may_lack(self, tables: Sequence[StageTable]) -> npt.NDArray[np.bool_]:
        """``[schedule]``: False where every even cut fits under the first mode of the tables, so that no layer need be
        recomputed."""
        lacks = np.zeros(len(self.layers), np.bool_)
        for table in dict.fromkeys(tables):
            kept, static = table.activation_bytes[0], table.static_bytes
            need = self.layers * static[1:-1].max(initial=0.0) + static[0] + static[-1] + table.transient_bytes[0].max()
            need += self.passes * (self.of_part * kept[1:-1].max(initial=0.0) + kept[0] + kept[-1])
            lacks |= need > table.capacity_bytes
        return lacks


def _least_even_layers(n_layers: int, parts: int) -> int:
    """Layers that every part between the first and the last holds at least under even parts (`chunks.even_cuts`)."""
    if parts < 3:
        return 0
    at_ends = 2 * (-(-n_layers // parts) + 1)
    return max(1, (n_layers - at_ends) // (parts - 2))


def _pipeline_bound_s(
    layer_s: FloatArray,
    n_microbatches: int,
    *,
    pp: int,
    equivalent: float,
    longest_s: float,
    waiting: float,
    boundary_s: float = 0.0,
    beside_s: float = 0.0,
    again_s: float = 0.0,
) -> float:
    """(m - waiting) max t + waiting sum t, with max t at least the mean over equivalent ranks and ``longest_s``; ``beside_s``
    counts in the sum alone, ``again_s`` is work beside that of ``layer_s``."""
    work_s = float(layer_s.sum()) + again_s
    longest_s = max(longest_s, work_s / equivalent + boundary_s)
    return waiting * (work_s + pp * (boundary_s + beside_s)) + max(0.0, n_microbatches - waiting) * longest_s


def _equivalent_ranks(fastest_s: FloatArray, layers_s: Mapping[Alike, FloatArray], ranks: Sequence[Alike]) -> float:
    """Return the number of the fastest ranks that could do the work of all ranks: each counts as its speed on the layer it is
    best at.

    ``ranks`` says of each rank which others are like it, ``layers_s`` the time of each layer on such a rank.
    """
    some = fastest_s > 0
    slow = {alike: float(np.min(layer_s[some] / fastest_s[some], initial=1e9)) for alike, layer_s in layers_s.items()}
    return sum(1.0 / max(1.0, slow[alike]) for alike in ranks)


def _longest_even_rank_s(candidate: Candidate, rank_s: Sequence[FloatArray]) -> float:
    """Least time of the slowest rank under even parts: those between the first and the last have about equal numbers of
    layers, none of which is the model's first or last."""
    n_layers = len(rank_s[0])
    parts = candidate.pipelining.n_parts(candidate.mesh.pp)
    each = _least_even_layers(n_layers, parts)
    if not each:
        return 0.0
    copies = n_copies(candidate.pipelining.schedule)
    longest_s = 0.0
    for layer_s, held in zip(rank_s, positions(candidate), strict=True):
        between = sum(0 < position < parts - 1 for position in held)
        longest_s = max(longest_s, between * each * float(layer_s[1:-1].min()) / copies)
    return longest_s


# Figures of block choices and of schedules that families of a search share, each worked out once.


@dataclass(frozen=True, slots=True)
class ScheduleWay:
    """A schedule with the recompute modes that its stages may choose from, or with some layers of each part recomputed."""

    pipelining: Pipelining
    modes: tuple[Recompute, ...]
    some_layers: bool
    is_bounded_by_work: bool
    """False where memory decides how many layers are recomputed, without a pipeline: a closed form says it at once."""


@dataclass(eq=False)
class SharedFigures:
    """Figures of choices, state and schedules under the costs of a request."""

    costs: TrainingCosts
    _choices: dict[tuple[BlockSetting, ...], BlockChoices] = field(default_factory=dict)
    _vectors: dict[tuple[BlockSetting, BlockChoices], FloatArray] = field(default_factory=dict)
    _bare: dict[tuple[BlockSetting, tuple[Recompute, ...], BlockChoices], tuple[FloatArray, FloatArray, FloatArray]] = field(
        default_factory=dict
    )
    _bytes: dict[tuple[object, ...], FloatArray] = field(default_factory=dict)
    _ways: dict[tuple[object, ...], tuple[ScheduleWay, ...]] = field(default_factory=dict)
    _waiting: dict[tuple[object, ...], float] = field(default_factory=dict)
    _held: dict[tuple[object, ...], tuple[IntArray, IntArray, IntArray]] = field(default_factory=dict)

    def ways_of(self, family: CandidateFamily) -> tuple[ScheduleWay, ...]:
        """The ways to run the members of a family, in the order of its candidates; last those that recompute some layers."""
        key = (family.mesh.pp > 1, family.recompute, family.pipelinings, family.layers, family.modules)
        if key not in self._ways:
            self._ways[key] = (*_of_whole_stages(family), *_of_some_layers(family))
        return self._ways[key]

    def choices_of(self, candidate: Candidate, kinds: tuple[StageKind, ...]) -> BlockChoices:
        """The choices of each block of a candidate's shardings."""
        costs = self.costs
        settings = tuple(dict.fromkeys(s for kind in dict.fromkeys(kinds) for s in costs.settings(candidate, kind)))
        if settings not in self._choices:
            combinations = costs.combinations_of(candidate, kinds)
            counts = np.bincount(costs.layer_block[1:-1], minlength=len(costs.block_names))
            self._choices[settings] = BlockChoices(
                combinations, combinations.of_blocks, int(np.argmax(counts)), costs.layer_block
            )
        return self._choices[settings]

    def vectors(self, setting: BlockSetting, choices: BlockChoices) -> FloatArray:
        """[row, criterion] costs of the choices."""
        # Families whose stages differ have other choices under a setting that both have.
        key = (setting, choices)
        if key not in self._vectors:
            names = self.costs.block_names
            made = [self.costs.block_cost(names[b], setting, one) for b, each in enumerate(choices.rows) for one in each]
            self._vectors[key] = np.array(made)
        return self._vectors[key]

    def held(self, candidate: Candidate) -> tuple[IntArray, IntArray, IntArray]:
        """Parts of each rank, passes that it holds of each at once, [rank, moment, part], and the number of its moments."""
        choice, pp = candidate.pipelining, candidate.mesh.pp
        key = (choice, pp, candidate.n_microbatches, candidate.expert_overlap)
        if key not in self._held:
            of_ranks = held_by_part(candidate)
            parts = np.array(positions_of_ranks(choice.schedule, pp, choice.chunks), np.int64)
            moments = np.array([len(rows) for rows in of_ranks], np.int64)
            padded = np.zeros((pp, int(moments.max()), parts.shape[1]), np.int64)
            for rank, rows in enumerate(of_ranks):
                padded[rank, : len(rows)] = rows
            self._held[key] = (parts, padded, moments)
        return self._held[key]

    def waiting_of(self, like: Candidate, choice: Pipelining, first_mode: Recompute) -> float:
        """Return the wait of a schedule over that of 1F1B, for a candidate like this one, whose first mode is given."""
        key = (choice, like.mesh.pp, like.n_microbatches, first_mode, like.choices.recompute_modules)
        if key not in self._waiting:
            self._waiting[key] = self.costs.waiting_of(replace(like, pipelining=choice, recompute=(first_mode,)))
        return self._waiting[key]

    def bare_rows(
        self, candidate: Candidate, modes: tuple[Recompute, ...], setting: BlockSetting, choices: BlockChoices
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Time, kept and transient bytes of the choices [mode, row], without what places of state add to them."""
        key = (setting, modes, choices)
        if key not in self._bare:
            vectors = self.vectors(setting, choices)
            self._bare[key] = self.costs.bare_rows(modes, setting, vectors, choices.of_row)
        return self._bare[key]

    def bytes_of_state(self, candidate: Candidate, kind: StageKind, setting: BlockSetting) -> FloatArray:
        """[group of ranks, block] bytes on a device for each parameter that the group shares."""
        shards = kind.topology.hybrid_of(candidate.shard_ranks).shards if candidate.shard_ranks is not None else None
        groups = (shards or kind.topology.state, kind.topology.expert_state)
        key = (candidate.place, *(group.n for group in groups), setting.device, candidate.mesh.spreads_experts)
        if key not in self._bytes:
            self._bytes[key] = self.costs.state_bytes_per_parameter(candidate, kind, setting)
        return self._bytes[key]


def _of_whole_stages(family: CandidateFamily) -> Iterator[ScheduleWay]:
    if family.layers is RecomputedLayers.SOME:
        return
    found: dict[Pipelining, list[tuple[Recompute, ...]]] = {}
    for modes, choices in family.modes_and_schedules():
        for choice in choices:
            found.setdefault(choice, []).append(modes)
    for choice, sets in found.items():
        yield from (ScheduleWay(choice, modes, some_layers=False, is_bounded_by_work=True) for modes in sets)


def _of_some_layers(family: CandidateFamily) -> Iterator[ScheduleWay]:
    if family.layers is RecomputedLayers.ALL_OR_NONE:
        return
    pp = family.mesh.pp
    for each in family.pipelinings:
        choice = each.of_some_layers(pp)
        if choice is not None:
            yield ScheduleWay(choice, SOME_LAYERS, some_layers=True, is_bounded_by_work=pp > 1)


def shown_sends_s(sends_s: FloatArray, hidden_s: FloatArray, choice: Pipelining) -> tuple[FloatArray, FloatArray, FloatArray]:
    """[stage] sends that a pass waits for, those that a step waits for once, and those beside passes; of sends of one chunk,
    and what of all is hidden under other chunks."""
    of_chunks, nothing = np.maximum(0.0, sends_s * choice.chunks - hidden_s), np.zeros(len(sends_s))
    once_s = (len(sends_s) - 1) * sends_s if choice.traits.sends is SendTiming.UNDER_OTHER_CHUNKS else nothing
    if choice.traits.sends is SendTiming.UNDER_OTHER_MICROBATCHES:
        return nothing, once_s, of_chunks
    return of_chunks, once_s, nothing
