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
