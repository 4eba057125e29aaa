"""The sets of operators of a block that take least time to run again for what they save (Checkmate, Jain et al., MLSys'20).

One choice an operator: what it writes is kept, runs again in the backward pass, or is gone where nothing reads it there. What
an operator reads when it runs again is kept or runs again, too. This has the form of the sharding problem, so the same solvers
find every set that no other beats in seconds and bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.experts import expert_region
from meshwright.solver.blocks.recompute import rerunnable
from meshwright.solver.blocks.setting import BlockSetting
from meshwright.solver.blocks.sharding_problem import (
    BlockProblem,
    Criterion,
    FloatArray,
    IntraOpProblem,
    ReshardEdge,
    build_block_problem,
    frontier,
    kept_in,
)
from meshwright.solver.problem.choices import Recompute, Space
from meshwright.solver.problem.graph import Block, ModelGraph
from meshwright.solver.sharding_problem.frontier import OperatorSearch


@dataclass(frozen=True, slots=True)
class RerunSet:
    """Operators of a block, as block/operator: the seconds that they take to run again, and the bytes that the block then keeps
    of what it writes, of one micro-batch."""

    operators: frozenset[str]
    seconds: float
    kept_bytes: float


class _Fate(IntEnum):
    """What becomes of what an operator writes."""

    GONE = 0
    KEPT = 1
    AGAIN = 2


def least_time_sets(
    graph: ModelGraph, block: Block, setting: BlockSetting, search: OperatorSearch | None = None
) -> tuple[RerunSet, ...]:
    """Every set that no other beats, under the launchers' sharding in a setting; least time first, the empty set among them.
    None where the block can't be sharded so.

    A tensor takes the bytes that it takes while nothing runs again, or its working format where nothing saves it then.
    """
    built = build_block_problem(graph, block, replace(setting, space=Space.LAUNCHABLE, splits=()))
    if built is None:
        return ()
    problem, never_s = _problem(graph, block, setting, built)
    found = []
    for point in frontier(problem, search=search):
        seconds, kept = point.cost
        again = (op.name for op, fate in zip(block.operators, point.choice, strict=True) if fate == _Fate.AGAIN)
        if seconds < never_s:
            found.append(RerunSet(frozenset(f"{block.name}/{name}" for name in again), seconds, kept))
    return tuple(sorted(found, key=lambda each: each.seconds))


def _problem(graph: ModelGraph, block: Block, setting: BlockSetting, built: BlockProblem) -> tuple[IntraOpProblem, float]:
    """Nodes and edges with the criteria seconds and bytes; and seconds that are more than all, of what can't be."""
    sent: dict[tuple[int, int], float] = {}
    for edge in built.problem.edges:
        key = edge.source, edge.target
        sent[key] = sent.get(key, 0.0) + float(edge.cost[0, 0, Criterion.FORWARD_S])
    forward_s = [float(costs[0, Criterion.FORWARD_S]) for costs in built.problem.node_costs]
    # Either end of an edge has it sent again. Not more than is needed: solvers of whole numbers round to a share of it.
    never_s = 2.0 * (sum(forward_s) + 2.0 * sum(sent.values()))
    can_rerun = set(rerunnable(block))
    saved_bytes = kept_in(block, setting).by_mode[Recompute.NONE]
    sizes = {**graph.dims, BATCH: setting.microbatch, SEQ: setting.seq_len // setting.cp}
    region = expert_region(block.operators)
    nodes = []
    for operator, options, again_s in zip(block.operators, built.strategies, forward_s, strict=True):
        local = region.local_sizes(operator, options[0].local_sizes(sizes, setting.tp), ep=setting.ep)
        is_saved = any(tensor.name in saved_bytes for tensor in operator.outputs)
        kept = sum(
            tensor.elements(local) * (saved_bytes.get(tensor.name, 0.0) if is_saved else setting.dtype.size_bytes)
            for tensor in operator.outputs
        )
        fates = np.zeros((len(_Fate), 2))
        fates[_Fate.GONE, 0] = never_s if is_saved else 0.0
        fates[_Fate.KEPT, 1] = kept
        fates[_Fate.AGAIN, 0] = again_s if f"{block.name}/{operator.name}" in can_rerun else never_s
        nodes.append(fates)
    index = {operator.name: place for place, operator in enumerate(block.operators)}
    pairs = dict.fromkeys((index[source], index[target]) for source, target, _ in block.edges())
    edges = tuple(ReshardEdge(*pair, _between(sent.get(pair, 0.0), never_s)) for pair in pairs)
    return IntraOpProblem(tuple(nodes), edges, n_objectives=2), never_s


def _between(sent_s: float, never_s: float) -> FloatArray:
    """``[fate of the writer, fate of the reader, criterion]``: a reader that runs again finds what it reads, and what either
    sends is sent again."""
    table = np.zeros((len(_Fate), len(_Fate), 2))
    table[_Fate.AGAIN, :, 0] = table[:, _Fate.AGAIN, 0] = sent_s
    table[_Fate.GONE, _Fate.AGAIN, 0] = never_s
    return table


DISTINCT = 1 / 50
"""Share of what a block keeps that sets differ by at least to be told apart: a third of the mean error of memory (6%,
docs/accuracy.md)."""


def told_apart(sets: Sequence[RerunSet]) -> tuple[RerunSet, ...]:
    """Those of a block's sets that each save more than the one before by `DISTINCT` of what the first keeps, and the last."""
    kept: list[RerunSet] = []
    for each in sets:
        if not kept or kept[-1].kept_bytes - each.kept_bytes >= DISTINCT * sets[0].kept_bytes:
            kept.append(each)
    return tuple(dict.fromkeys((*kept, *sets[-1:])))


def together(of_blocks: Sequence[Sequence[RerunSet]]) -> tuple[frozenset[str], ...]:
    """The sets of a model from those of each of its blocks: of one block all; of several those that are best at some price of a
    byte, the same for all blocks."""
    if len(of_blocks) == 1:
        return tuple(each.operators for each in of_blocks[0])
    prices = sorted({price for sets in of_blocks for price in _prices(sets)})
    between = [0.0, *((a + b) / 2 for a, b in itertools.pairwise(prices)), *(2.0 * price for price in prices[-1:])]
    return tuple(dict.fromkeys(frozenset[str]().union(*(_best(sets, price) for sets in of_blocks)) for price in between))


def _best(sets: Iterable[RerunSet], price: float) -> frozenset[str]:
    return min(sets, key=lambda each: (each.seconds + price * each.kept_bytes, each.seconds)).operators


def _prices(sets: Iterable[RerunSet]) -> Iterable[float]:
    """Seconds for a byte at which two neighbours on the convex hull of a block's sets are worth the same."""
    hull: list[RerunSet] = []
    for each in sets:
        while len(hull) > 1 and _price(hull[-2], hull[-1]) >= _price(hull[-1], each):
            hull.pop()
        hull.append(each)
    return [_price(a, b) for a, b in itertools.pairwise(hull)]


def _price(a: RerunSet, b: RerunSet) -> float:
    return (b.seconds - a.seconds) / (a.kept_bytes - b.kept_bytes)
