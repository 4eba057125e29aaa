"""Schedules with one chunk a rank: GPipe, 1F1B, eager-1F1B, ZB-H1 and ZB-H2; and interleaved 1F1B with several."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.pipeline.order import Chunk, RankOrder
from meshwright.costmodels.pipeline.program import Action, Kind, Slot


def gpipe_order(rank: int, n_microbatches: int) -> list[Slot]:
    """All forwards, then all backwards (GPipe)."""
    order = RankOrder((Chunk(rank),))
    order.forward(0, n_microbatches)
    order.backward(0, n_microbatches)
    return order.slots


def one_f_one_b_order(rank: int, n_microbatches: int, *, warmup: int) -> list[Slot]:
    """``warmup`` forwards, then a backward for each forward.

    1F1B (PipeDream-Flush) has as many as fill the ranks behind; eager-1F1B one more for each of these, so that what a rank
    waits for is on its way while it runs another micro-batch (Zhuang et al., MLSys'23, section 4).
    """
    order = RankOrder((Chunk(rank),))
    warmup = min(warmup, n_microbatches)
    order.forward(0, warmup)
    for _ in range(n_microbatches - warmup):
        order.backward(0)
        order.forward(0)
    order.backward(0, warmup)
    return order.slots


def zero_bubble_order(rank: int, n_microbatches: int, *, warmup: int, most_held: int) -> list[Slot]:
    """1F1B with the backward split: gradients of weights wait until memory needs them done (Zero Bubble, section 2).

    ``warmup`` forwards come first; as many weight halves wait as ``most_held`` forwards in flight allow. When the forwards
    are over, weight halves fill the time in which the next backward is on its way.
    """
    order = RankOrder((Chunk(rank),))
    warmup = min(warmup, n_microbatches)
    order.forward(0, warmup)
    for _ in range(n_microbatches - warmup):
        order.input(0)
        if order.held() >= most_held:
            order.weight()
        order.forward(0)
    for _ in range(warmup):
        order.input(0)
        order.weight()
    order.remaining_weights()
    return order.slots


def interleaved_order(rank: int, n_ranks: int, n_microbatches: int, n_chunks: int) -> list[Slot]:
    """1F1B over chunks: micro-batches go in groups of ``n_ranks`` through one chunk after the other (Megatron-LM, SC'21)."""
    chunks, warmup = interleaved_chunks(rank, n_ranks, n_microbatches, n_chunks)
    passes = [(i // (n_ranks * n_chunks) * n_ranks + i % n_ranks, chunk) for i, chunk in enumerate(chunks.tolist())]
    forwards = [Action(Kind.FORWARD, microbatch, chunk * n_ranks + rank) for microbatch, chunk in passes]
    backwards = [Action(Kind.BACKWARD, microbatch, (n_chunks - 1 - chunk) * n_ranks + rank) for microbatch, chunk in passes]
    actions = forwards[:warmup]
    for backward, forward in zip(backwards, forwards[warmup:], strict=False):
        actions += [backward, forward]
    return [(action,) for action in actions + backwards[len(passes) - warmup :]]


def interleaved_chunks(rank: int, n_ranks: int, n_microbatches: int, n_chunks: int) -> tuple[NDArray[np.int64], int]:
    """The chunk of each forward of a rank in order, and how many forwards it runs before its first backward.

    Backwards run through the chunks in the same order from the last to the first.
    """
    chunks = np.tile(np.repeat(np.arange(n_chunks), n_ranks), n_microbatches // n_ranks)
    # the last rank has a backward to run as soon as it has brought the first micro-batch to the last chunk
    return chunks, min((n_chunks - 1) * n_ranks + 2 * (n_ranks - 1 - rank) + 1, len(chunks))
