"""Figures of block choices and of schedules that families of a search share, each worked out once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.costmodels.pipeline import SendTiming, positions_of_ranks
from meshwright.solver.blocks.setting import BlockSetting
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import held_by_part
from meshwright.solver.training.costs.stage_table import FloatArray, StageKind
from meshwright.solver.training.search.choice_rows import BlockChoices, IntArray
from meshwright.solver.training.space.candidates import SOME_LAYERS, Candidate, Family, RecomputedLayers
from meshwright.solver.training.space.schedules import Pipelining


@dataclass(frozen=True, slots=True)
class Way:
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
    _ways: dict[tuple[object, ...], tuple[Way, ...]] = field(default_factory=dict)
    _waiting: dict[tuple[object, ...], float] = field(default_factory=dict)
    _held: dict[tuple[object, ...], tuple[IntArray, IntArray, IntArray]] = field(default_factory=dict)

    def ways_of(self, family: Family) -> tuple[Way, ...]:
        """The ways to run the members of a family, in the order of its candidates; last those that recompute some layers."""
        key = (family.mesh.pp > 1, family.recompute, family.pipelinings, family.layers)
        if key not in self._ways:
            self._ways[key] = (*_of_whole_stages(family), *_of_some_layers(family))
        return self._ways[key]

    def choices_of(self, candidate: Candidate, kinds: tuple[StageKind, ...]) -> BlockChoices:
        """The choices of each block of a candidate's shardings."""
        costs = self.costs
        settings = tuple(dict.fromkeys(s for kind in dict.fromkeys(kinds) for s in costs.settings(candidate, kind)))
        if settings not in self._choices:
            shardings = tuple(costs.shardings(candidate, kinds))
            rows = tuple(tuple(dict.fromkeys(each)) for each in zip(*shardings, strict=True))
            counts = np.bincount(costs.layer_block[1:-1], minlength=len(costs.block_names))
            self._choices[settings] = BlockChoices(shardings, rows, int(np.argmax(counts)), costs.layer_block)
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
        key = (choice, pp, candidate.n_microbatches)
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
        key = (choice, like.mesh.pp, like.n_microbatches, first_mode)
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


def _of_whole_stages(family: Family) -> Iterator[Way]:
    if family.layers is RecomputedLayers.SOME:
        return
    found: dict[Pipelining, list[tuple[Recompute, ...]]] = {}
    for modes, choices in family.modes_and_schedules():
        for choice in choices:
            found.setdefault(choice, []).append(modes)
    for choice, sets in found.items():
        yield from (Way(choice, modes, some_layers=False, is_bounded_by_work=True) for modes in sets)


def _of_some_layers(family: Family) -> Iterator[Way]:
    if family.layers is RecomputedLayers.ALL_OR_NONE:
        return
    pp = family.mesh.pp
    for each in family.pipelinings:
        choice = each.of_some_layers(pp)
        if choice is not None:
            yield Way(choice, SOME_LAYERS, some_layers=True, is_bounded_by_work=pp > 1)


def shown_sends_s(sends_s: FloatArray, choice: Pipelining) -> tuple[FloatArray, FloatArray, FloatArray]:
    """[stage] sends that a pass waits for, those that a step waits for once, and those beside passes; of sends of one chunk."""
    of_chunks, nothing = sends_s * choice.chunks, np.zeros(len(sends_s))
    once_s = (len(sends_s) - 1) * sends_s if choice.traits.sends is SendTiming.UNDER_OTHER_CHUNKS else nothing
    if choice.traits.sends is SendTiming.UNDER_OTHER_MICROBATCHES:
        return nothing, once_s, of_chunks
    return of_chunks, once_s, nothing
