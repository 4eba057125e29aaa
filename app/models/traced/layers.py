"""The layers of a traced graph: it is cut where one tensor of the residual stream is all that goes on, and equal pieces are one
block.

A cut lies between two operators, in the order of the trace, where the only tensor that is written before and read behind has
the shape of the residual stream. Beside it there may be a side: the output of an encoder, which layers of a decoder read, each
of them. Pieces between cuts that compute the same, on tensors of the same dims, are equal; a piece, or several pieces in turn,
that repeat are the layers. What lies before, between and behind them stays in one block each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

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

_MOST_CROSSING = 3
"""Tensors that are counted at a place: the stream, a side, and one more, at which nothing is cut."""

_LONGEST_PERIOD, _MOST_DEPTH = 64, 4
"""Pieces of a layer, at most (two a layer, and layers of eight kinds in turn, are 16), and how often what is left between runs
is looked through again: any trace is read in time that grows with its size."""


@dataclass(frozen=True)
class _Piece:
    """Operators between two cuts.

    enters    the tensor of the stream that comes in; None where a stream starts
    beside    sides that it reads
    alike     what tells pieces that compute the same but for what their kernels learn
    weights   with ``alike``, what tells equal pieces
    """

    operators: tuple[Operator, ...]
    enters: str | None
    leaves: str
    beside: frozenset[str]
    alike: tuple[object, ...]
    weights: tuple[object, ...]


@dataclass(frozen=True)
class _Run:
    """Pieces ``first`` to ``first + length - 1``, which follow ``repeat`` times one another; ``layers`` are alike."""

    first: int
    length: int
    repeat: int
    layers: bool = False

    @property
    def end(self) -> int:
        """The first piece behind the run."""
        return self.first + self.length * self.repeat


def in_layers(graph: ModelGraph) -> ModelGraph:
    """Return a graph of one block as a chain of blocks; the graph itself where nothing in it repeats between cuts."""
    (block,) = graph.blocks
    pieces = _pieces(block)
    runs = _layers(pieces)
    if not any(run.layers for run in runs):
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
    chain = tuple(BlockRun(name, run.repeat) for name, run in named)
    return replace(graph, blocks=blocks, chain=chain, edges=_edges(pieces, runs))


def _layers(pieces: Sequence[_Piece]) -> list[_Run]:
    """Pieces in runs: layers that are alike are found first, and among them those that are equal, so that a first layer which
    learns more than the others is one layer all the same."""
    sizes = [len(piece.operators) for piece in pieces]
    runs: list[_Run] = []
    for run in _runs(_numbered([piece.alike for piece in pieces]), sizes, 0, len(pieces)):
        if run.repeat == 1:
            streams = [place for place in range(run.first + 1, run.end) if pieces[place].enters is None]
            runs += [_Run(start, end - start, 1) for start, end in pairwise([run.first, *streams, run.end])]
            continue
        copies = range(run.first, run.end, run.length)
        kinds = _numbered([tuple(piece.weights for piece in pieces[at : at + run.length]) for at in copies])
        for equal in _runs(kinds, [1] * run.repeat, 0, run.repeat):
            # Layers that are alike and not equal are a block each.
            count = equal.length if equal.repeat > 1 else 1
            starts = copies[equal.first : equal.end : count * equal.repeat]
            runs += [_Run(start, count * run.length, equal.repeat, layers=True) for start in starts]
    return runs


def _numbered(keys: Sequence[tuple[object, ...]]) -> list[int]:
    """A number for each key, the same for equal ones."""
    known: dict[tuple[object, ...], int] = {}
    return [known.setdefault(key, len(known)) for key in keys]


def _edges(pieces: Sequence[_Piece], runs: Sequence[_Run]) -> tuple[tuple[int, int], ...]:
    """Edges between runs: from the run that writes what comes in, and from those that write what is read beside it; none where
    the runs are a chain."""
    writer = {pieces[run.end - 1].leaves: place for place, run in enumerate(runs)}
    inside = [pieces[run.first : run.first + run.length] for run in runs]
    read = [{each[0].enters, *(name for piece in each for name in piece.beside)} for each in inside]
    edges = sorted((writer[name], target) for target, names in enumerate(read) for name in names if name is not None)
    return () if edges == list(pairwise(range(len(runs)))) else tuple(edges)


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
            if len(crossing[place]) < _MOST_CROSSING:
                crossing[place].append(name)
    sides = _sides(operators, crossing, dims)
    cuts: list[tuple[int, str | None, str]] = []
    for place, names in enumerate(crossing):
        stream = [name for name in names if name not in sides]
        if names and len(stream) <= 1 and len(names) - len(stream) <= 1 and all(dims[name] == STREAM for name in names):
            cuts.append((place, stream[0] if stream else None, (stream or names)[0]))
    starts = [(0, None), *((place, enters) for place, enters, _ in cuts)]
    ends = [*((place, leaves) for place, _, leaves in cuts), (len(operators), block.output)]
    return [
        _piece(operators[start:end], enters, leaves, sides) for (start, enters), (end, leaves) in zip(starts, ends, strict=True)
    ]


def _sides(operators: Sequence[Operator], crossing: Sequence[Sequence[str]], dims: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Tensors beside which an operator that does not read them starts another stream, and which several operators read."""
    readers = Counter(tensor.name for operator in operators for tensor in operator.inputs)
    return {
        names[0]
        for operator, names in zip(operators, crossing, strict=False)
        if len(names) == 1
        and dims[names[0]] == STREAM
        and all(tensor.name != names[0] for tensor in operator.inputs)
        and any(tensor.dims == STREAM for tensor in operator.outputs)
        and readers[names[0]] >= _LEAST_REPEATS
    }


def _piece(operators: tuple[Operator, ...], enters: str | None, leaves: str, sides: set[str]) -> _Piece:
    """A piece, with what tells equal ones: its operators, but for names, each tensor by where it is written."""
    beside = frozenset(tensor.name for operator in operators for tensor in operator.inputs if tensor.name in sides)
    place = {name: name for name in beside}
    if enters is not None:
        place[enters] = RESIDUAL
    for index, operator in enumerate(operators):
        place |= {tensor.name: f"{index}.{number}" for number, tensor in enumerate(operator.outputs)}
    alike = (
        *(
            (
                tuple(getattr(operator, each.name) for each in fields(Operator) if each.name not in _OF_NAMES),
                tuple((place.get(tensor.name), tensor.dims) for tensor in operator.inputs),
                tuple(tensor.dims for tensor in operator.outputs),
                tuple(place.get(name) for name in operator.saved),
            )
            for operator in operators
        ),
        place.get(leaves),
    )
    weights = tuple(tuple((weight.dims, weight.tied_to) for weight in operator.weights) for operator in operators)
    return _Piece(operators, enters, leaves, beside, alike, weights)


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
    repeated = [place for place, run in enumerate(runs) if run.layers]
    named: dict[str, int] = {}
    names = []
    for place, run in enumerate(runs):
        kind = LAYER if run.layers else EMBEDDING if place < repeated[0] else HEAD if place > repeated[-1] else BETWEEN
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
