"""Equal layers of a model told apart in turn, so that each kind has shardings of its own: strategies by layer, within a stage
too (Galvatron, VLDB'22)."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.problem.graph import Block, BlockRun, ModelGraph

MOST_KINDS = 2
"""Shardings of a model are the product of those of its blocks: of three kinds no plan was found in 15 CPU s."""


def with_layer_kinds(graph: ModelGraph, kinds: int) -> ModelGraph:
    """The chain in which copies of a block are so many blocks in turn, the second named with ~2 behind it; one of which that is
    so already is returned as it is, as are blocks whose weights are tied.

    Raises WorkloadError for a model that branches.
    """
    repeated = {name for name, count in Counter(graph.layers).items() if count > 1} - _tied(graph)
    known = {block.name for block in graph.blocks}
    if kinds == 1 or any(_named(name, 1) in known for name in repeated):
        return graph
    if graph.edges:
        raise WorkloadError("layers of a model that branches are of one kind", given=f"layer_kinds: {kinds}", allowed="1")
    seen: Counter[str] = Counter()
    layers = []
    for name in graph.layers:
        layers.append(_named(name, seen[name] % kinds) if name in repeated else name)
        seen[name] += 1
    copies = (_copies(block, kinds) if block.name in repeated else (block,) for block in graph.blocks)
    used = {*layers, *(known - repeated)}
    blocks = tuple(block for block in itertools.chain.from_iterable(copies) if block.name in used)
    chain = tuple(BlockRun(name, len([*run])) for name, run in itertools.groupby(layers))
    return replace(graph, blocks=blocks, chain=chain)


def _named(name: str, kind: int) -> str:
    return f"{name}~{kind + 1}" if kind else name


def _copies(block: Block, kinds: int) -> tuple[Block, ...]:
    return tuple(replace(block, name=_named(block.name, kind)) for kind in range(kinds))


def _tied(graph: ModelGraph) -> set[str]:
    """Blocks with a weight that another operator has too."""
    ties = [(block, weight.tied_to) for block, _, weight in graph.tied_weights() if weight.tied_to is not None]
    return {name for block, owner in ties for name in (block, graph.owner(owner).block)}
