"""Pipeline schedules as programs: what each rank runs, in which order.

A micro-batch walks along a *path* of ranks. A *position* on the path is one part of the model: position 0 holds the first
blocks. A rank that appears twice on a path holds two chunks. Time and memory of a program: `costmodels.pipeline.timeline`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
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
