"""Layers of a model as a graph: which layer reads what another one wrote, and what a cut between stages sends and holds.

A chain's layers each read the one before. Where a model branches (encoder-decoder, several modalities) a layer may read more:
its *entry* comes from the layer that its residual stream continues, *sides* from others. A stage is cut off by a downset: a
set of layers that holds with each layer all those that it reads from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from meshwright.costmodels.model.operators import OperatorKind
from meshwright.solver.problem.graph import Block, ModelGraph


@dataclass(frozen=True)
class LayerDag:
    """For each layer, in order of execution, the layer its input continues (None: none) and the others that it reads."""

    entries: tuple[int | None, ...]
    sides: tuple[tuple[int, ...], ...]

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.entries)

    @cached_property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        """All layers that each layer reads from."""
        return tuple(
            (*(() if entry is None else (entry,)), *sides) for entry, sides in zip(self.entries, self.sides, strict=True)
        )

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Layers that read each layer."""
        found: list[list[int]] = [[] for _ in self.entries]
        for layer, reads in enumerate(self.reads):
            for source in reads:
                found[source].append(layer)
        return tuple(map(tuple, found))

    @property
    def is_chain(self) -> bool:
        """True if each layer reads the one before and nothing else."""
        return all(reads == ((layer - 1,) if layer else ()) for layer, reads in enumerate(self.reads))

    def sent_after(self, done: Iterable[int]) -> int:
        """Tensors that go on when these layers are done and the others are not: each once, however many read it."""
        inside = frozenset(done)
        return sum(any(reader not in inside for reader in self.readers[layer]) for layer in inside)

    def held_sides(self, layers: Iterable[int]) -> int:
        """Tensors that layers of one stage read beside their entries and keep for their backward passes: each once."""
        return len({side for layer in layers for side in self.sides[layer]})


def chain_dag(n_layers: int) -> LayerDag:
    """The graph of a chain."""
    return LayerDag((None, *range(n_layers - 1))[:n_layers], ((),) * n_layers)


def layer_dag(model: ModelGraph) -> LayerDag:
    """The graph of a model's layers, runs unfolded.

    An edge between two runs is a tensor that every layer of the later one reads, if it reads that tensor by name; else it is
    what the run's first layer continues.
    """
    if model.is_chain:
        return chain_dag(len(model.layers))
    starts = [0]
    for run in model.chain:
        starts.append(starts[-1] + run.repeat)
    sources: list[list[int]] = [[] for _ in model.chain]
    for source, target in sorted(model.edges):
        sources[target].append(source)
    entries: list[int | None] = []
    sides: list[tuple[int, ...]] = []
    for index, run in enumerate(model.chain):
        given = _read_from_outside(model.block(run.block))
        named = [s for s in sources[index] if model.block(model.chain[s].block).output in given]
        others = [s for s in sources[index] if s not in named]
        main = others[0] if others else (named[0] if named and len(given) == 1 else None)
        for copy in range(run.repeat):
            here = starts[index] + copy
            beside = [s for s in named if s != main] + ([s for s in others if s != main] if copy == 0 else [])
            entries.append(here - 1 if copy else (None if main is None else starts[main + 1] - 1))
            sides.append(tuple(starts[source + 1] - 1 for source in beside))
    return LayerDag(tuple(entries), tuple(sides))


def _read_from_outside(block: Block) -> set[str]:
    """Activations that a block reads and does not write; token ids are none."""
    written = {tensor.name for operator in block.operators for tensor in operator.outputs}
    return {
        tensor.name
        for operator in block.operators
        if operator.kind is not OperatorKind.EMBEDDING
        for tensor in operator.inputs
        if tensor.name not in written
    }


def downsets(dag: LayerDag, *, most: int) -> list[frozenset[int]] | None:
    """Every downset, smaller ones first and equal sizes in order of their layers; None where there are more than ``most``."""
    found: dict[frozenset[int], None] = {frozenset(): None}
    last: Sequence[frozenset[int]] = [frozenset()]
    while last:
        grown: dict[frozenset[int], None] = {}
        for done in last:
            for layer in range(dag.n_layers):
                if layer not in done and all(source in done for source in dag.reads[layer]):
                    grown[done | {layer}] = None
        last = sorted(grown, key=sorted)
        found |= grown.fromkeys(last)
        if len(found) > most:
            return None
    return list(found)
