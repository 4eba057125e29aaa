"""Interleaved 1F1B (Narayanan et al., Megatron-LM, SC'21): 1F1B over several chunks a rank.

Micro-batches go in groups of as many as there are ranks through one chunk after the other.
"""

from __future__ import annotations

import numpy as np

from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.pipeline.program import Action, PassKind, Schedule, Slot
from meshwright.costmodels.pipeline.traits import (
    ChunkCount,
    IntArray,
    PassShares,
    PipelineRuntime,
    PipelineSize,
    ScheduleTraits,
    SendTiming,
    WholeSequences,
    along_in_chunks,
    fill_and_drain_s,
    undominated,
)


def _require(size: PipelineSize) -> None:
    if size.n_chunks < 2 or size.n_microbatches % size.n_ranks:
        raise InvalidInputError(
            "interleaved 1F1B can't run this",
            given=f"{size.n_chunks} chunks, {size.n_microbatches} micro-batches on {size.n_ranks} ranks",
            allowed="2 or more chunks, micro-batches in multiples of ranks",
        )


def _orders(size: PipelineSize) -> list[list[Slot]]:
    return [_order(rank, size) for rank in range(size.n_ranks)]


def _order(rank: int, size: PipelineSize) -> list[Slot]:
    n_ranks, n_chunks = size.n_ranks, size.n_chunks
    chunks, warmup = _chunks_and_warmup(rank, size)
    passes = [(i // (n_ranks * n_chunks) * n_ranks + i % n_ranks, chunk) for i, chunk in enumerate(chunks.tolist())]
    forwards = [Action(PassKind.FORWARD, microbatch, chunk * n_ranks + rank) for microbatch, chunk in passes]
    backwards = [Action(PassKind.BACKWARD, microbatch, (n_chunks - 1 - chunk) * n_ranks + rank) for microbatch, chunk in passes]
    actions = forwards[:warmup]
    for backward, forward in zip(backwards, forwards[warmup:], strict=False):
        actions += [backward, forward]
    return [(action,) for action in actions + backwards[len(passes) - warmup :]]


def _chunks_and_warmup(rank: int, size: PipelineSize) -> tuple[IntArray, int]:
    """The chunk of each forward of a rank in order, and how many forwards it runs before its first backward.

    Backwards run through the chunks in the same order from the last to the first.
    """
    p, v = size.n_ranks, size.n_chunks
    chunks = np.tile(np.repeat(np.arange(v), p), size.n_microbatches // p)
    # the last rank has a backward to run as soon as it has brought the first micro-batch to the last chunk
    return chunks, min((v - 1) * p + 2 * (p - 1 - rank) + 1, len(chunks))


def _held_passes(rank: int, size: PipelineSize) -> IntArray:
    """Held is most just before a backward: after the first forwards, and then after each forward."""
    n_chunks = size.n_chunks
    chunks, warmup = _chunks_and_warmup(rank, size)
    forwards = np.cumsum(chunks[:, None] == np.arange(n_chunks), axis=0)
    backwards = np.concatenate([np.zeros((1, n_chunks), np.int64), forwards[:, ::-1]])
    return undominated(forwards[warmup - 1 :] - backwards[: len(forwards) - warmup + 1])


def _peak_in_flight(rank: int, size: PipelineSize) -> float:
    # Megatron-LM SC'21: p (1 + (p - 1) / (p v)) on the first rank
    p, m, v = size.n_ranks, size.n_microbatches, size.n_chunks
    return min(m * v, (v - 1) * p + 2 * (p - 1 - rank) + 1) / v


def _fills(size: PipelineSize) -> bool:
    return size.n_ranks > 1 and size.n_chunks > 1 and size.n_microbatches % size.n_ranks == 0


def _waiting_ratio(size: PipelineSize, _: PassShares) -> float:
    return 1.0 / size.n_chunks  # Megatron-LM SC'21, section 2.2.2


TRAITS = ScheduleTraits(
    schedule=Schedule.INTERLEAVED,
    title="interleaved 1F1B",
    paths=along_in_chunks,
    orders=_orders,
    sequences=WholeSequences(
        peak_in_flight=_peak_in_flight, fills=_fills, waiting_ratio=_waiting_ratio, held_passes=_held_passes
    ),
    bubble_s=fill_and_drain_s,
    require=_require,
    chunk_count=ChunkCount.ANY,
    sends=SendTiming.UNDER_OTHER_CHUNKS,
    run_by=(
        (PipelineRuntime.MEGATRON_CORE, "forward_backward_pipelining_with_interleaving"),
        (PipelineRuntime.PYTORCH, "Interleaved1F1B"),
    ),
)
