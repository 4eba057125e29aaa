"""The layers of a traced graph: it is cut where one tensor of the residual stream is all that goes on, and equal pieces are one
block.

A cut lies between two operators, in the order of the trace, where the only tensor that is written before and read behind has
the shape of the residual stream. Pieces between cuts that compute the same, on tensors of the same dims, are equal; a piece, or
several pieces in turn, that repeat are the layers. What lies before, between and behind them stays in one block each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from meshwright.costmodels.model.dims import BATCH, HIDDEN, SEQ
from meshwright.costmodels.model.operators import Operator, Tensor
from meshwright.solver.problem.graph import RESIDUAL, Block, BlockRun, ModelGraph

STREAM = (BATCH, SEQ, HIDDEN)
"""Dims of the residual stream."""

EMBEDDING, LAYER, BETWEEN, HEAD = "embedding", "layer", "between", "head"
"""Names of blocks: what comes before the layers, they themselves, what lies between two kinds of them, and what comes last."""

_OF_NAMES = frozenset({"name", "inputs", "outputs", "weights", "saved"})
"""Fields of an operator that hold names of its own."""

_LEAST_REPEATS = 2
"""Least number of times that pieces have to repeat to be layers."""

_LONGEST_PERIOD, _MOST_DEPTH = 64, 4
"""Pieces of a layer, at most (two a layer, and layers of eight kinds in turn, are 16), and how often what is left between runs
is looked through again: any trace is read in time that grows with its size."""


@dataclass(frozen=True)
class _Piece:
    """Operators between two cuts; ``enters`` is the tensor that comes in (None at the start), ``key`` tells equal pieces."""

    operators: tuple[Operator, ...]
    enters: str | None
    leaves: str
    key: tuple[object, ...]


@dataclass(frozen=True)
class _Run:
    """Pieces ``first`` to ``first + length - 1``, which follow ``repeat`` times one another."""

    first: int
    length: int
    repeat: int

    @property
    def end(self) -> int:
        """The first piece behind the run."""
        return self.first + self.length * self.repeat


def in_layers(graph: ModelGraph) -> ModelGraph:
    """Return a graph of one block as a chain of blocks; the graph itself where nothing in it repeats between cuts."""
    (block,) = graph.blocks
    pieces = _pieces(block)
    known: dict[tuple[object, ...], int] = {}
    kinds = [known.setdefault(piece.key, len(known)) for piece in pieces]
    runs = _runs(kinds, [len(piece.operators) for piece in pieces], 0, len(pieces))
    if not any(run.repeat > 1 for run in runs):
        return graph
    named = list(zip(_names(runs), runs, strict=True))
    block_of = {
        operator.name: name
        for name, run in named
        for piece in pieces[run.first : run.first + run.length]
        for operator in piece.operators
    }
    owners = {
        weight.tied_to: graph.owner(weight.tied_to) for _, _, weight in graph.tied_weights() if weight.tied_to is not None
    }
    if any(owner.operator not in block_of for owner in owners.values()):
        return graph
    tied = {name: "/".join(owner._replace(block=block_of[owner.operator])) for name, owner in owners.items()}
    blocks = tuple(_block(name, pieces[run.first : run.first + run.length], tied) for name, run in named)
    return replace(graph, blocks=blocks, chain=tuple(BlockRun(name, run.repeat) for name, run in named))


def _pieces(block: Block) -> list[_Piece]:
    """The operators between two cuts each."""
    operators = block.operators
    writer = {tensor.name: place for place, operator in enumerate(operators) for tensor in operator.outputs}
    dims = {tensor.name: tensor.dims for operator in operators for tensor in operator.outputs}
    reader: dict[str, int] = {}
    for place, operator in enumerate(operators):
        reader.update((tensor.name, place) for tensor in operator.inputs if tensor.name in writer)
    crossing: list[list[str]] = [[] for _ in range(len(operators) + 1)]
    for name, last in reader.items():
        for place in range(writer[name] + 1, last + 1):
            if len(crossing[place]) < 2:
                crossing[place].append(name)
    cuts = [(place, names[0]) for place, names in enumerate(crossing) if len(names) == 1 and dims[names[0]] == STREAM]
    starts = [(0, None), *cuts]
    ends = [*cuts, (len(operators), block.output)]
    return [
        _Piece(operators[start:end], enters, leaves, _key(operators[start:end], enters, leaves))
        for (start, enters), (end, leaves) in zip(starts, ends, strict=True)
    ]


def _key(operators: Sequence[Operator], enters: str | None, leaves: str) -> tuple[object, ...]:
    """What tells equal pieces: their operators, but for names, each tensor by where it is written."""
    place = {} if enters is None else {enters: RESIDUAL}
    for index, operator in enumerate(operators):
        place |= {tensor.name: f"{index}.{number}" for number, tensor in enumerate(operator.outputs)}
    return (
        *(
            (
                tuple(getattr(operator, each.name) for each in fields(Operator) if each.name not in _OF_NAMES),
                tuple((place.get(tensor.name), tensor.dims) for tensor in operator.inputs),
                tuple(tensor.dims for tensor in operator.outputs),
                tuple((weight.dims, weight.tied_to) for weight in operator.weights),
                tuple(place.get(name) for name in operator.saved),
            )
            for operator in operators
        ),
        place.get(leaves),
    )


def _runs(kinds: Sequence[int], sizes: Sequence[int], first: int, end: int, depth: int = 0) -> list[_Run]:
    """Pieces ``first`` to ``end`` in runs: that which repeats the most operators, and what lies before and behind it likewise.

    ``kinds`` tell equal pieces, ``sizes`` are their numbers of operators.
    """
    best, most = None, 0
    longest = min(_LONGEST_PERIOD, (end - first) // _LEAST_REPEATS) if depth < _MOST_DEPTH else 0
    for length in range(1, longest + 1):
        place = first
        while place + length < end:
            last = place
            while last + length < end and kinds[last] == kinds[last + length]:
                last += 1
            repeat = (last - place) // length + 1
            covered = sum(sizes[place : place + length * repeat])
            # Of the runs that cover as many operators the shortest piece is the layer.
            if repeat >= _LEAST_REPEATS and covered > most:
                best, most = _Run(place, length, repeat), covered
            place = max(place + 1, last)
    if best is None:
        return [_Run(first, end - first, 1)] if end > first else []
    before = _runs(kinds, sizes, first, best.first, depth + 1)
    return [*before, best, *_runs(kinds, sizes, best.end, end, depth + 1)]


def _names(runs: Sequence[_Run]) -> list[str]:
    """A name for each run."""
    repeated = [place for place, run in enumerate(runs) if run.repeat > 1]
    named: dict[str, int] = {}
    names = []
    for place, run in enumerate(runs):
        kind = LAYER if run.repeat > 1 else EMBEDDING if place < repeated[0] else HEAD if place > repeated[-1] else BETWEEN
        named[kind] = named.get(kind, 0) + 1
        names.append(kind if named[kind] == 1 else f"{kind}_{named[kind]}")
    return names


def _block(name: str, pieces: Sequence[_Piece], tied: Mapping[str, str]) -> Block:
    """The block of pieces that follow one another; the tensor that comes in gets the name that all blocks have for it.

    ``tied`` has the new name of each weight that others are tied to.
    """
    entering = {pieces[0].enters}

    def renamed(tensor: Tensor) -> Tensor:
        return replace(tensor, name=RESIDUAL) if tensor.name in entering else tensor

    operators = tuple(
        replace(
            operator,
            inputs=tuple(renamed(tensor) for tensor in operator.inputs),
            saved=tuple(RESIDUAL if kept in entering else kept for kept in operator.saved),
            weights=tuple(
                weight if weight.tied_to is None else replace(weight, tied_to=tied[weight.tied_to])
                for weight in operator.weights
            ),
        )
        for piece in pieces
        for operator in piece.operators
    )
    return Block(name, operators, pieces[-1].leaves)
