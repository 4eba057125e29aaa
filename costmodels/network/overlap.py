"""The slowdown of streams that run at the same time.

Four streams share a device: its computation, collectives inside the node, collectives between nodes, and copies to and from
the host's memory. A factor for each stream of each set of streams that run together makes 28: two for each of six pairs,
three for each of four triples, and four (as many as Mist, EuroSys'25).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.cluster.cluster import Device, GroupTopology
from meshwright.costmodels.kernels.compute import sustained_memory_s
from meshwright.costmodels.model.implementation import TensorOverlap
from meshwright.costmodels.network.collectives import Collective, collective_s

Floats = NDArray[np.float64]


class Stream(Enum):
    """A stream: a part of a device that can be busy at once with others."""

    COMPUTE = "compute"
    INTRA_NODE = "intra-node"
    INTER_NODE = "inter-node"
    HOST_COPY = "host copy"


Together = frozenset[Stream]
"""Streams that are busy at the same time."""


@dataclass(frozen=True)
class Interference:
    """The factor by which each stream is slower beside others.

    factors   for a set of streams, the factor on the time of each; a stream that is left out is not slowed. A set that is
              not given slows each stream by the product of what its pairs do: independent causes
    """

    factors: Mapping[Together, Mapping[Stream, float]] = field(default_factory=dict)

    def slowdown(self, stream: Stream, together: Together) -> float:
        """Factor on a stream's time while all of ``together``, itself among them, are busy."""
        if together in self.factors:
            return self.factors[together].get(stream, 1.0)
        if len(together) <= 2:
            return 1.0
        return math.prod(self.slowdown(stream, frozenset((stream, other))) for other in together if other is not stream)


_COLLECTIVE_ON_COMPUTE = 1.189
"""Computation beside collectives takes 18.9% longer on average, over GPT and LLaMA models on four A100, H100, MI250 and MI210
(Lee et al. 2025, arXiv 2507.03114, abstract): their kernels hold some of the cores. How much the collectives are slowed is not
given apart, and taken as nothing. Nodes were not joined there; the same kernels hold cores between nodes."""

MEASURED_INTERFERENCE = Interference(
    {
        frozenset((Stream.COMPUTE, Stream.INTRA_NODE)): {Stream.COMPUTE: _COLLECTIVE_ON_COMPUTE},
        frozenset((Stream.COMPUTE, Stream.INTER_NODE)): {Stream.COMPUTE: _COLLECTIVE_ON_COMPUTE},
        # The same cores: two kinds of collectives at once hold no more than the channels of one.
        frozenset((Stream.COMPUTE, Stream.INTRA_NODE, Stream.INTER_NODE)): {Stream.COMPUTE: _COLLECTIVE_ON_COMPUTE},
    }
)
"""Copies to the host run on engines of their own, at a hundredth of the memory's bandwidth: nothing is slowed by them."""


def exposed_s(communication_s: Floats, compute_s: Floats, stream: Stream, interference: Interference) -> Floats:
    """Return the seconds that communication under computation adds to it: its excess, and the computation that it slows.
    Element by element."""
    pair = frozenset((Stream.COMPUTE, stream))
    compute_factor = interference.slowdown(Stream.COMPUTE, pair)
    communication_factor = interference.slowdown(stream, pair)
    together_s = np.minimum(compute_s * compute_factor, communication_s * communication_factor)
    compute_left_s = compute_s - together_s / compute_factor
    communication_left_s = communication_s - together_s / communication_factor
    return np.asarray(together_s + compute_left_s + communication_left_s - compute_s, np.float64)


def passes_exposed_s(
    gather_s: Floats, reduce_s: Floats, forward_s: Floats, backward_s: Floats, stream: Stream
) -> tuple[Floats, Floats]:
    """Return the seconds that weights and gradients which travel beside a layer's passes add to each of them: the forward pass
    hides gathers of ``gather_s``, the backward pass gathers and reductions of ``reduce_s`` (ZeRO-3, FSDP)."""
    forward = exposed_s(gather_s, forward_s, stream, MEASURED_INTERFERENCE)
    return forward, exposed_s(reduce_s, backward_s, stream, MEASURED_INTERFERENCE)


def pair_exposed_s(
    exchange_s: Floats,
    forward_s: Floats,
    backward_s: Floats,
    stream: Stream,
    interference: Interference = MEASURED_INTERFERENCE,
) -> tuple[Floats, Floats]:
    """Return the seconds that the exchanges of a forward pass and of a backward pass add, where both run at once on two
    micro-batches: each of ``exchange_s``, under the computation of the other's pass (DeepSeek-V3 report, section 3.2.1)."""
    return (
        exposed_s(exchange_s, backward_s, stream, interference),
        exposed_s(exchange_s, forward_s, stream, interference),
    )


# Tensor-parallel products cut into chunks, so that the communication of one runs under the computation of another.
#
# A product behind an all-gather starts on the rows that have come; a product before a
# reduce-scatter sends the rows that are done. What shows is the communication of one chunk that
# nothing is left to hide (the tail; "Data Decomposition" in section 2.6 of the survey), what
# chunks' communication takes longer than their computation, what computation is slowed beside it,
# and what a product of fewer rows loses.


@dataclass(frozen=True, slots=True)
class Chunking:
    """The cut of a product and its collective into chunks.

    chunks      parts that are computed one after another
    travelling  parts that are communicated: all of them, or all but the one that stays on its rank (chunks - 1)
    """

    chunks: int
    travelling: int


@dataclass(frozen=True, slots=True)
class Chunker:
    """The way in which a framework cuts products over tp ranks.

    pipelined_scatters   chunks of a reduce-scatter behind a product, each a reduce-scatter of its own; None: as many as
                         ranks, each sent to its rank and added up there at the end
    buffers              tensors that stay allocated for it, in sizes of the whole tensor that is gathered or scattered, and
    buffers_of_a_rank    in sizes of a rank's share of it
    """

    pipelined_scatters: int | None
    buffers: int
    buffers_of_a_rank: int

    def buffer_bytes(self, whole_bytes: float, tp: int) -> float:
        """Bytes of buffers on each of tp ranks that gather and scatter tensors of ``whole_bytes``."""
        return (self.buffers + self.buffers_of_a_rank / tp) * whole_bytes


CHUNKERS: Mapping[TensorOverlap, Chunker] = {
    # Defaults of initialize_ub (transformer_engine/pytorch/module/base.py): gathers by ring exchange; scatters of outputs in a
    # pipeline of 4; of input gradients in bulk, beside the weight gradient; a buffer for each of 12 uses.
    TensorOverlap.USERBUFFERS: Chunker(4, buffers=12, buffers_of_a_rank=0),
    # torch/distributed/_symmetric_memory: _pipelined_all_gather_and_consume and _pipelined_produce_and_all2all, whose
    # workspace is two chunks.
    TensorOverlap.SYMMETRIC_MEMORY: Chunker(None, buffers=0, buffers_of_a_rank=2),
}
"""Of the frameworks that cut products; the others communicate before or after them."""


def chunking(kind: Collective, tp: int, chunker: Chunker) -> Chunking:
    """Return the cut of a product over tp ranks that reads what an all-gather moves, or feeds what a reduce-scatter moves."""
    if kind is Collective.REDUCE_SCATTER and chunker.pipelined_scatters is not None:
        return Chunking(chunker.pipelined_scatters, chunker.pipelined_scatters)
    # A rank begins with the rows that it holds, or ends with those that it keeps.
    return Chunking(tp, tp - 1)


def added_s(
    whole_s: float, chunk_s: float, communication_s: float, cut: Chunking, stream: Stream, interference: Interference
) -> float:
    """Return the seconds that a collective adds to a product, where both are cut into chunks.

    ``whole_s`` is the product in one piece, ``chunk_s`` one of its chunks, ``communication_s`` one that travels. Two stages in
    a row on n chunks take n times the longer and once the shorter. Never less than without communication: no chunk is
    taken to run faster than its share of the whole.
    """
    compute_s = max(chunk_s, whole_s / cut.chunks)
    together_s = compute_s + float(exposed_s(np.array(communication_s), np.array(compute_s), stream, interference))
    alone = cut.travelling - (cut.chunks - 1)
    return compute_s + (cut.chunks - 1) * together_s + alone * communication_s - whole_s


def travelling_chunk_s(
    kind: Collective, message_bytes: float, topology: GroupTopology, cut: Chunking, *, whole_s: float
) -> float:
    """Seconds that one chunk of a collective of ``message_bytes`` travels; all of them never less than the collective whole,
    ``whole_s``."""
    of_chunk = message_bytes / cut.chunks
    by_itself = cut.travelling == cut.chunks
    alone_s = float(collective_s(kind if by_itself else Collective.SEND_RECV, of_chunk, topology))
    return max(alone_s, whole_s / cut.travelling)


def adding_up_s(kind: Collective, message_bytes: float, device: Device, cut: Chunking) -> float:
    """Seconds to add up what came from other ranks, where no collective does: all chunks are read, one's size is written."""
    if kind is not Collective.REDUCE_SCATTER or cut.travelling == cut.chunks:
        return 0.0
    return float(sustained_memory_s(device, message_bytes * (1 + 1 / cut.chunks)))
