"""Pipeline schedules as programs: what each rank runs, in which order.

A micro-batch walks along a *path* of ranks. A *position* on the path is one part of the model: position 0 holds the first
blocks. A rank that appears twice on a path holds two chunks. Time and memory of a program: `costmodels.pipeline.timeline`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple


class Schedule(StrEnum):
    """Names of the pipeline schedules; each has its file in `costmodels.pipeline.schedules`."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    EAGER_ONE_F_ONE_B = "eager-1f1b"
    INTERLEAVED = "interleaved-1f1b"
    ZB_H1 = "zb-h1"
    ZB_H2 = "zb-h2"
    ZB_V = "zb-v"
    V_HALF = "v-half"
    V_MIN = "v-min"
    DUALPIPE = "dualpipe"
    DUALPIPE_V = "dualpipe-v"
    TERAPIPE = "terapipe"
    SEQ_1F1B = "seq1f1b"


class PassKind(StrEnum):
    """The computation of an action: activations, all gradients at once, or gradients of inputs and of weights apart."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT = "I"
    WEIGHT = "W"


class Action(NamedTuple):
    """One pass of a micro-batch through the part of the model at ``position`` of its path; of token slices, each counts as a
    micro-batch: slice k of micro-batch i is ``i * n_slices + k``."""

    kind: PassKind
    microbatch: int
    position: int


Slot = tuple[Action, ...]
"""The work of a rank at a time: one action, or a forward and a backward whose communication and computation overlap."""


@dataclass(frozen=True)
class Program:
    """The order of every rank, and the way of every micro-batch.

    schedule  which schedule this is
    paths     the ways there are: the rank of each position; all ways have the same number of positions
    path_of   the way each micro-batch, or token slice, takes, an index into ``paths``
    orders    what each rank runs, in order
    n_slices  token slices of a micro-batch
    """

    schedule: Schedule
    paths: tuple[tuple[int, ...], ...]
    path_of: tuple[int, ...]
    orders: tuple[tuple[Slot, ...], ...]
    n_slices: int = 1

    @property
    def n_ranks(self) -> int:
        """Ranks of the pipeline."""
        return len(self.orders)

    @property
    def n_microbatches(self) -> int:
        """Micro-batches of a step."""
        return len(self.path_of) // self.n_slices

    @property
    def n_positions(self) -> int:
        """Parts the model is cut in."""
        return len(self.paths[0])

    def rank_of(self, microbatch: int, position: int) -> int:
        """The rank that runs a micro-batch at a position."""
        return self.paths[self.path_of[microbatch]][position]

    @cached_property
    def chunks_per_microbatch(self) -> int:
        """Parts of the model that a micro-batch passes on each rank."""
        return max(Counter(self.paths[0]).values())

    def peak_chunks(self, rank: int) -> int:
        """Most forward passes whose activations a rank holds at once.

        A forward takes memory from its start; a full backward frees it at its end, a split one only with the gradient of
        the weights, as the zero-bubble papers count. Times don't matter: a rank runs its slots one by one.
        """
        held = peak = 0
        for slot in self.orders[rank]:
            held += sum(action.kind is PassKind.FORWARD for action in slot)
            peak = max(peak, held)
            held -= sum(action.kind in (PassKind.BACKWARD, PassKind.WEIGHT) for action in slot)
        return peak

    def peak_in_flight(self, rank: int) -> float:
        """`peak_chunks` in micro-batches: in units of one micro-batch's activations on all parts it passes on the rank.

        Token slices count as equally long.
        """
        return self.peak_chunks(rank) / (self.chunks_per_microbatch * self.n_slices)


# Writes the order of one rank, counting micro-batches per chunk.


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of the model on a rank: its position on the path, and the first of the micro-batches that come to it."""

    position: int
    first_microbatch: int = 0


@dataclass(slots=True)
class RankSlots:
    """The slots of one rank so far. Each call adds the next micro-batch of a chunk, in order of arrival."""

    chunks: tuple[Chunk, ...]
    slots: list[Slot] = field(default_factory=list)
    _forwards: dict[Chunk, int] = field(default_factory=dict)
    _backwards: dict[Chunk, int] = field(default_factory=dict)
    _weights: deque[Action] = field(default_factory=deque)

    def forward(self, chunk: int, times: int = 1) -> None:
        """Adds forwards."""
        for _ in range(times):
            self.slots.append((self._next_forward(chunk),))

    def backward(self, chunk: int, times: int = 1) -> None:
        """Adds full backwards."""
        for _ in range(times):
            self.slots.append((self._next_backward(chunk, PassKind.BACKWARD),))

    def input(self, chunk: int) -> None:
        """Adds the input half of a backward; its weight half waits."""
        action = self._next_backward(chunk, PassKind.INPUT)
        self.slots.append((action,))
        self._weights.append(Action(PassKind.WEIGHT, action.microbatch, action.position))

    def weight(self) -> None:
        """Adds the weight half that has waited longest."""
        self.slots.append((self._weights.popleft(),))

    def weight_of(self, chunk: int) -> None:
        """Adds the weight half of a chunk that has waited longest."""
        action = next(action for action in self._weights if action.position == self.chunks[chunk].position)
        self._weights.remove(action)
        self.slots.append((action,))

    def remaining_weights(self) -> None:
        """Adds all weight halves that wait."""
        while self._weights:
            self.weight()

    def overlapped(self, forward_chunk: int, backward_chunk: int) -> None:
        """Adds a forward and a full backward that run together."""
        self.slots.append((self._next_forward(forward_chunk), self._next_backward(backward_chunk, PassKind.BACKWARD)))

    def held(self) -> int:
        """Forwards whose activations are not free yet."""
        return sum(self._forwards.values()) - sum(self._backwards.values()) + len(self._weights)

    def _next_forward(self, chunk: int) -> Action:
        return _next(self._forwards, self.chunks[chunk], PassKind.FORWARD)

    def _next_backward(self, chunk: int, kind: PassKind) -> Action:
        return _next(self._backwards, self.chunks[chunk], kind)


def _next(counts: dict[Chunk, int], chunk: Chunk, kind: PassKind) -> Action:
    count = counts.get(chunk, 0)
    counts[chunk] = count + 1
    return Action(kind, chunk.first_microbatch + count, chunk.position)


# Passes of token slices: slice k of micro-batch i is number ``i * n_slices + k`` of an order.
#
# Slices of a micro-batch go forward first to last, since each reads the keys and values of those before it, and backward last
# to first, since each adds to their gradients.


def slice_passes(rank: int, n_microbatches: int, n_slices: int) -> tuple[list[Slot], list[Slot]]:
    """Forwards and backwards of a rank, each in order."""
    starts = range(0, n_microbatches * n_slices, n_slices)
    forwards = [start + k for start in starts for k in range(n_slices)]
    backwards = [start + k for start in starts for k in reversed(range(n_slices))]
    return (
        [(Action(PassKind.FORWARD, number, rank),) for number in forwards],
        [(Action(PassKind.BACKWARD, number, rank),) for number in backwards],
    )


# Orders of a building block of passes that repeats for every micro-batch, on a path along the ranks and back (a V).
#
# Qi et al., Pipeline Parallelism with Controllable Memory (NeurIPS'24).

BLOCK_SLOTS = 6
"""Slots a micro-batch takes on a rank when all passes take one: two chunks, each forward, input and weight."""


@dataclass(slots=True)
class _Lane:
    """The actions that a rank has still to do, and those that it has done."""

    passes: deque[Action]
    weights: deque[Action] = field(default_factory=deque)
    held: int = 0
    slots: list[Slot] = field(default_factory=list)


def repeated_block_orders(
    blocks: Sequence[tuple[int, int, int, int]], n_microbatches: int, *, most_held: int
) -> list[list[Slot]]:
    """Orders of a building block that repeats for every micro-batch.

    A block gives the slots at which a rank forwards on chunks 0 and 1 and backwards on chunks 1 and 0. The order of
    these passes is kept; gaps close as soon as what a pass needs has arrived, and a rank that would wait, or that may hold
    no more, runs a weight half instead. Times are counted in slots, all passes being equal.
    """
    n_ranks = len(blocks)
    lanes = [_Lane(deque(_passes(rank, n_ranks, block, n_microbatches))) for rank, block in enumerate(blocks)]
    done: set[Action] = set()
    while any(lane.passes or lane.weights for lane in lanes):
        chosen = [(lane, action) for lane in lanes if (action := _choose(lane, done, 2 * n_ranks, most_held))]
        assert chosen, "a building block that repeats can't wait for itself"
        for lane, action in chosen:
            lane.slots.append((action,))
            lane.held += (action.kind is PassKind.FORWARD) - (action.kind is PassKind.WEIGHT)
            done.add(action)
            if action.kind is PassKind.INPUT:
                lane.weights.append(action._replace(kind=PassKind.WEIGHT))
    return [lane.slots for lane in lanes]


def _passes(rank: int, n_ranks: int, block: tuple[int, int, int, int], n_microbatches: int) -> list[Action]:
    out, back = rank, 2 * n_ranks - 1 - rank
    chunks = ((PassKind.FORWARD, out), (PassKind.FORWARD, back), (PassKind.INPUT, back), (PassKind.INPUT, out))
    timed = [
        (offset + BLOCK_SLOTS * microbatch, Action(kind, microbatch, position))
        for microbatch in range(n_microbatches)
        for offset, (kind, position) in zip(block, chunks, strict=True)
    ]
    return [action for _, action in sorted(timed)]


def _choose(lane: _Lane, done: set[Action], n_positions: int, most_held: int) -> Action | None:
    """The next pass if it can run now, else a weight half, else nothing."""
    if lane.passes:
        action = lane.passes[0]
        has_room = action.kind is not PassKind.FORWARD or lane.held < most_held
        previous = _previous(action, n_positions)
        if has_room and (previous is None or previous in done):
            return lane.passes.popleft()
    return lane.weights.popleft() if lane.weights else None


def _previous(action: Action, n_positions: int) -> Action | None:
    """Return the action that a forward or input pass waits for; None for the first forward."""
    if action.kind is PassKind.FORWARD:
        return action._replace(position=action.position - 1) if action.position else None
    if action.position == n_positions - 1:
        return action._replace(kind=PassKind.FORWARD)
    return action._replace(position=action.position + 1)
