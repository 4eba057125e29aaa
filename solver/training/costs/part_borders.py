"""Borders of the parts of a model under schedules that hold several of them on a rank: every even cut, costed at once.

The first and the last part, which hold the embedding and the head, may have any number of layers up to one more than an
even share; the parts between share the rest as evenly as they can, the longer ones first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.pipeline import n_copies
from meshwright.solver.blocks.sharding_problem import IntraOpProblem, ReshardEdge
from meshwright.solver.blocks.tp_strategies import Strategy
from meshwright.solver.problem.declared.constraints import AlikeShardings, Constraint
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.training.costs.evaluate import StageTable, held_by_part, positions
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.training.space.schedules import Pipelining

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class EvenCuts:
    """All even cuts of a candidate with what they cost: ``[cut]`` step time, ``[cut, rank]`` memory; which parts a rank has."""

    cuts: IntArray
    step_s: FloatArray
    need_bytes: FloatArray
    capacity_bytes: FloatArray
    parts: IntArray

    def sums_of_ranks(self, by_layer: FloatArray) -> FloatArray:
        """``[cut, rank]`` sums over the layers of a rank's parts."""
        return np.asarray(_sums(by_layer, self.cuts)[:, self.parts].sum(axis=2), np.float64)


@lru_cache(maxsize=1024)
def even_cuts(n_layers: int, n_parts: int) -> IntArray:
    """``[cut, part + 1]``: first layer of each part, and the end; fewest layers at the ends first. Two parts or more."""
    most = -(-n_layers // n_parts) + 1
    found = []
    for first in range(1, most + 1):
        for last in range(1, most + 1):
            between, parts = n_layers - first - last, n_parts - 2
            if between < parts or (parts == 0 and between):
                continue
            each, longer = divmod(between, parts) if parts else (0, 0)
            sizes = [first, *(each + (part < longer) for part in range(parts)), last]
            found.append(np.cumsum([0, *sizes]))
    return np.array(found, np.int64)


def cuts_of(choice: Pipelining, n_layers: int, pp: int) -> IntArray:
    """``[cut, part + 1]``: the even cuts of a schedule over ``pp`` ranks, or the launcher's own."""
    return np.array([choice.borders], np.int64) if choice.borders else even_cuts(n_layers, choice.n_parts(pp))


@dataclass(frozen=True, eq=False)
class FirstLayers:
    """The first layers of each part that are recomputed whole: ``number`` of those that can be, ``again`` [layer]."""

    number: int
    again: BoolArray

    def ends(self, cuts: IntArray) -> IntArray:
        """``[cut, part]``: the first layer of each part behind those that are recomputed."""
        before = np.concatenate([[0], np.cumsum(self.again)])
        # The layer behind the n-th that can be recomputed; behind the last one the end.
        behind = np.concatenate([[0], np.flatnonzero(self.again) + 1])
        last = np.minimum(before[cuts[:, :-1]] + self.number, len(behind) - 1)
        return np.asarray(np.clip(behind[last], cuts[:, :-1], cuts[:, 1:]), np.int64)

    def end_in(self, first: int, last: int) -> int:
        """The first layer of the part ``first`` .. ``last`` behind those that are recomputed."""
        return int(self.ends(np.array([[first, last + 1]]))[0, 0])

    def most_in_a_part(self, cuts: IntArray) -> IntArray:
        """``[cut]``: the layers that can be recomputed of the part that has most of them."""
        before = np.concatenate([[0], np.cumsum(self.again)])
        return np.asarray((before[cuts[:, 1:]] - before[cuts[:, :-1]]).max(axis=1), np.int64)


@dataclass(frozen=True, eq=False)
class _ByPart:
    """Sums and maxima over the layers of each part of every cut, of rows [mode, layer]: of the least of all modes, or of the
    mode none with first layers under full."""

    cuts: IntArray
    first_layers: FirstLayers | None

    def sums(self, rows: FloatArray) -> FloatArray:
        """``[cut, part]`` sums."""
        if self.first_layers is None:
            return _sums(rows.min(axis=0), self.cuts)
        none, full = (np.concatenate([[0.0], np.cumsum(row)]) for row in rows)
        ends = self.first_layers.ends(self.cuts)
        again = full[ends] - full[self.cuts[:, :-1]]
        return np.asarray(again + none[self.cuts[:, 1:]] - none[ends], np.float64)

    def maxima(self, rows: FloatArray) -> FloatArray:
        """``[cut, part]`` maxima."""
        if self.first_layers is None:
            return _maxima(rows.min(axis=0), self.cuts)
        none, full = rows
        first, ends, behind = self.cuts[:, :-1], self.first_layers.ends(self.cuts), self.cuts[:, 1:]
        return np.maximum(_maxima_between(full, first, ends), _maxima_between(none, ends, behind))


def cost_even_cuts(candidate: Candidate, tables: tuple[StageTable, ...], first_layers: FirstLayers | None = None) -> EvenCuts:
    """Step time and memory of every even cut; ``tables`` are those of the pipeline ranks. One recompute mode; or none and full
    with ``first_layers`` under full, without them the least of both."""
    cuts = cuts_of(candidate.pipelining, tables[0].time_s.shape[1], candidate.mesh.pp)
    by_part = _ByPart(cuts, first_layers)
    parts = np.array(positions(candidate), np.int64)
    times_s, extras_s = np.empty((len(cuts), len(parts))), np.empty((len(cuts), len(parts)))
    passing_s, static, capacity = np.empty_like(times_s), np.empty_like(times_s), np.empty(len(parts))
    kept = np.empty((len(cuts), *parts.shape))
    transient = np.empty_like(times_s)
    for table in dict.fromkeys(tables):
        ranks = np.array([rank for rank, of_rank in enumerate(tables) if of_rank is table])
        here = parts[ranks]
        # A micro-batch passes one of the ranks that hold a part.
        share = 1.0 / n_copies(candidate.pipelining.schedule)
        computing_s = share * by_part.sums(table.time_s)[:, here].sum(axis=2) + table.boundary_s
        times_s[:, ranks] = np.maximum(computing_s, table.beside_s)
        passing_s[:, ranks] = computing_s + table.beside_s
        extras_s[:, ranks] = _sums(table.extra_s, cuts)[:, here].sum(axis=2) + np.where(ranks > 0, table.step_s, 0.0)
        static[:, ranks] = _sums(table.static_bytes, cuts)[:, here].sum(axis=2)
        kept[:, ranks] = by_part.sums(table.activation_bytes)[:, here]
        transient[:, ranks] = by_part.maxima(table.transient_bytes)[:, here].max(axis=2)
        capacity[ranks] = max(0.0, table.capacity_bytes)
    waiting = tables[0].waiting
    behind_s = waiting * np.cumsum(passing_s[:, ::-1], axis=1)[:, ::-1]
    step_s = (candidate.n_microbatches - waiting) * times_s.max(axis=1) + (extras_s + behind_s).max(axis=1)
    activation = np.stack([(kept[:, rank] @ held.T).max(axis=1) for rank, held in enumerate(held_by_part(candidate))], axis=1)
    return EvenCuts(cuts, step_s, static + activation + transient, capacity, parts)


def _sums(by_layer: FloatArray, cuts: IntArray) -> FloatArray:
    """``[cut, part]`` sums over the layers of each part."""
    running = np.concatenate([[0.0], np.cumsum(by_layer)])
    return np.asarray(running[cuts[:, 1:]] - running[cuts[:, :-1]], np.float64)


def _maxima(by_layer: FloatArray, cuts: IntArray) -> FloatArray:
    """``[cut, part]`` maxima over the layers of each part."""
    return _maxima_between(by_layer, cuts[:, :-1], cuts[:, 1:])


def _maxima_between(by_layer: FloatArray, first: IntArray, end: IntArray) -> FloatArray:
    """Maxima over the layers from ``first`` to before ``end``, 0 where there are none, from those of all runs of 1, 2, 4 ...
    layers."""
    runs = [by_layer]
    while 2 ** len(runs) <= len(by_layer):
        half = 2 ** (len(runs) - 1)
        padded = np.full(len(by_layer), -np.inf)
        padded[: len(by_layer) - half] = runs[-1][half:]
        runs.append(np.maximum(runs[-1], padded))
    some = end > first
    level = np.where(some, np.int64(np.floor(np.log2(np.maximum(end - first, 1)))), 0)
    table = np.array(runs)
    inside = np.minimum(first, len(by_layer) - 1)
    return np.where(some, np.maximum(table[level, inside], table[level, np.maximum(end - 2**level, 0)]), 0.0)


def fastest_that_fits(costed: EvenCuts, allowed: BoolArray) -> int | None:
    """Index of the fastest cut that fits, of those ``allowed`` [cut], the first of equals; None when none does."""
    fits = allowed & (costed.need_bytes <= costed.capacity_bytes).all(axis=1)
    return int(np.argmin(np.where(fits, costed.step_s, np.inf))) if fits.any() else None


def roomiest(costed: EvenCuts) -> tuple[int, int]:
    """The cut whose fullest rank lacks least, and that rank."""
    lacking = costed.need_bytes - costed.capacity_bytes
    cut = int(np.argmin(lacking.max(axis=1)))
    return cut, int(np.argmax(lacking[cut]))


# Tied weights have one storage: operators that share one must split it alike over tp; so must those that a request has alike.


@dataclass(frozen=True, slots=True)
class TiedUse:
    """An operator that must split some dims as others do, those of a weight that they share or its own; its block, its index
    there, and the dims."""

    block: str
    node: int
    dims: tuple[str, ...]

    def split(self, strategy: Strategy) -> tuple[str | None, bool]:
        """The dim of these that a strategy splits, None for none; and whether it splits what is stored."""
        return (strategy.dim if strategy.dim in self.dims else None), strategy.stores_split


def tied_uses(model: ModelGraph) -> tuple[tuple[TiedUse, ...], ...]:
    """For each weight that is used more than once, all its uses, the owner's first."""
    used = set(model.layers)
    groups: dict[str, list[TiedUse]] = {}
    for block, operator, weight in model.tied_weights():
        assert weight.tied_to is not None, "tied_weights() lists tied weights"
        if block in used:
            groups.setdefault(weight.tied_to, []).append(TiedUse(block, node_index(model, block, operator), weight.dims))
    found = []
    for name, uses in groups.items():
        block, operator, own = model.owner(name)
        dims = next(w.dims for w in model.block(block).operator(operator).weights if w.name == own)
        owner = [TiedUse(block, node_index(model, block, operator), dims)] if block in used else []
        found.append((*owner, *uses))
    return tuple(found)


def alike_uses(constraints: Sequence[Constraint], model: ModelGraph) -> tuple[tuple[TiedUse, ...], ...]:
    """For each constraint that has operators alike, those of blocks in use, with all of their dims."""
    blocks = [model.block(name) for name in dict.fromkeys(model.layers)]
    return tuple(
        tuple(
            TiedUse(block.name, node, tuple(operator.dims))
            for block in blocks
            for node, operator in enumerate(block.operators)
            if each.covers(f"{block.name}/{operator.name}")
        )
        for each in constraints
        if isinstance(each, AlikeShardings)
    )


def agreements(
    groups: Sequence[Sequence[TiedUse]], strategies: Mapping[str, Sequence[Sequence[Strategy]]]
) -> Iterator[dict[tuple[str, int], tuple[int, ...]]]:
    """Every way in which all uses of each group split their dims alike: for each (block, operator) the strategies left."""
    ways = []
    for uses in filter(None, groups):
        of_use = [_by_split(use, strategies[use.block][use.node]) for use in uses]
        common = [split for split in of_use[0] if all(split in other for other in of_use)]
        ways.append([[(use, found[split]) for use, found in zip(uses, of_use, strict=True)] for split in common])
    for picked in itertools.product(*ways):
        left: dict[tuple[str, int], tuple[int, ...]] = {}
        for use, indices in itertools.chain.from_iterable(picked):
            key = (use.block, use.node)
            left[key] = tuple(i for i in left.get(key, indices) if i in indices)
        if all(left.values()):
            yield left


def restricted(problem: IntraOpProblem, left: Mapping[int, Sequence[int]]) -> IntraOpProblem:
    """The problem with some operators' strategies reduced to those left."""
    kept = [np.array(left.get(node, range(len(costs))), dtype=np.int64) for node, costs in enumerate(problem.node_costs)]
    return IntraOpProblem(
        tuple(costs[rows] for costs, rows in zip(problem.node_costs, kept, strict=True)),
        tuple(
            ReshardEdge(edge.source, edge.target, edge.cost[np.ix_(kept[edge.source], kept[edge.target])])
            for edge in problem.edges
        ),
        problem.n_objectives,
    )


def unrestricted(choice: Sequence[int], left: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """A choice of the restricted problem as a choice of the whole one."""
    return tuple(int(left[node][index]) if node in left else index for node, index in enumerate(choice))


def _by_split(use: TiedUse, options: Sequence[Strategy]) -> dict[tuple[str | None, bool], tuple[int, ...]]:
    found: dict[tuple[str | None, bool], tuple[int, ...]] = {}
    for index, strategy in enumerate(options):
        split = use.split(strategy)
        found[split] = (*found.get(split, ()), index)
    return found


def node_index(model: ModelGraph, block: str, operator: str) -> int:
    """Place of an operator in its block."""
    return next(i for i, candidate in enumerate(model.block(block).operators) if candidate.name == operator)
