"""The parts of launchers' layers, and the buffers beside their chunked products, written down apart from the search's costs.

What launchers can start is in `solver.problem.launchers`: facts of other people's programs, which search and checker share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType

from meshwright.costmodels.model.implementation import TensorOverlap


class Layers(Enum):
    """The parts of a model's layers."""

    HAND_WRITTEN = auto()
    """Kernels for whole operators: Megatron-LM's."""
    MODULES = auto()
    """PyTorch modules that autograd takes apart: DeepSpeed's and torchtitan's."""
    COMPILED = auto()
    """The same compiled, and their loss: torchtitan's where it cuts products into chunks, which only its compiler does."""
    OTHER = auto()
    """Statements of a request on its own framework, which no launcher runs: the checker knows the least that it keeps."""


class Of(Enum):
    """The part of the residual stream that a buffer has the size of."""

    ALL_RANKS = auto()
    RANK = auto()
    """One tp rank's share."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """Buffers of the residual stream's size, or of a part, that stay allocated beside chunked products."""

    count: int
    of: Of


BUFFERS: Mapping[TensorOverlap, Buffers] = MappingProxyType(
    {
        # Tensors of a layer that Transformer Engine's initialize_ub allocates whole, one for each product and pass.
        TensorOverlap.USERBUFFERS: Buffers(12, Of.ALL_RANKS),
        # PyTorch's symmetric memory holds two shares of a rank for chunks on their way.
        TensorOverlap.SYMMETRIC_MEMORY: Buffers(2, Of.RANK),
    }
)
"""Buffers of chunked products, by what runs beside the products."""
