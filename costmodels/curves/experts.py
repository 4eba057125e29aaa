"""Time of the routed experts of a layer on one device: grouped products, activation and permutation, one sequence of kernels.

Serving engines run them fused (CUTLASS and TensorRT-LLM grouped GEMMs, Triton fused_moe). Weights of every expert that got
a row are read once; rows are padded to tiles; what the constants leave unexplained is held by a coarse table of log-ratios.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.curves.gemm import Silicon
from meshwright.costmodels.curves.interpolation import stencil

Floats = NDArray[np.float64]

TILE = 128.0
"""Rows and columns of an output tile (CUTLASS grouped GEMM)."""

ACTIVATION_BYTES = 2.0
"""Rows go in and out in 16 bits, in every measured table."""


class ExpertCurve(NamedTuple):
    """Constants of one device and number format.

    cores              compute units that tiles are spread over
    launch_s           fixed time of the kernels of a layer
    local_expert_s     time each expert held by the rank costs, whether it gets rows or not (offsets, descriptors)
    memory_efficiency  share of the data sheet's bandwidth that weight reads reach
    saturating_waves   waves of tiles in flight that it takes to reach it
    peak_efficiency    share of the matrix units' peak in large groups
    padding_rows       rows that each active expert computes in vain
    row_efficiency     share of the bandwidth that permuting and activating rows reaches
    joining            how reading and computing overlap: (a^j + b^j)^(1/j), 1 adds them, large j takes the longer
    log2_rows, log2_experts, log2_width, correction   log-ratio of measured to modelled time over rows an active expert,
                       active experts, and local expert width
    """

    cores: float
    launch_s: float
    local_expert_s: float
    memory_efficiency: float
    saturating_waves: float
    peak_efficiency: float
    padding_rows: float
    row_efficiency: float
    joining: float
    log2_rows: Floats
    log2_experts: Floats
    log2_width: Floats
    correction: Floats


class ExpertWork(NamedTuple):
    """The work of a rank for a layer; arrays of one length.

    rows      routed rows (a token counts once for each of its experts here)
    active    distinct experts among them, at least one
    local     experts that the rank holds
    hidden, width   sizes of an expert's matrices on this rank
    matrices  three of a gated network, else two
    """

    rows: Floats
    active: Floats
    local: Floats
    hidden: Floats
    width: Floats
    matrices: Floats


def experts_s(work: ExpertWork, curve: ExpertCurve, silicon: Silicon) -> Floats:
    """Seconds of each entry; ``silicon.element_bytes`` is the width of a weight, scales included."""
    points = expert_points(work)
    index, weight = stencil(points, (curve.log2_rows, curve.log2_experts, curve.log2_width))
    log_ratio = np.sum(curve.correction.ravel()[index] * weight, axis=1)
    return np.asarray(modelled_experts_s(work, curve, silicon) * np.exp(log_ratio))


def expert_points(work: ExpertWork) -> tuple[Floats, Floats, Floats]:
    """Coordinates of the correction table."""
    return np.log2(np.maximum(1.0, work.rows / work.active)), np.log2(work.active), np.log2(work.width)


def modelled_experts_s(work: ExpertWork, curve: ExpertCurve, silicon: Silicon) -> Floats:
    """Seconds by the physical constants alone."""
    elements = work.matrices * work.hidden * work.width
    columns = ((work.matrices - 1.0) * work.width + work.hidden) / 2.0
    waves = work.active * (columns / TILE) * np.ceil(work.rows / work.active / TILE) / curve.cores
    # With too few tiles in flight the memory queues run dry: bandwidth falls as the square root, as for plain products.
    filled = np.sqrt(np.minimum(1.0, waves / curve.saturating_waves))
    weight_bytes = work.active * elements * silicon.element_bytes
    memory_s = weight_bytes / (silicon.memory_bytes_per_s * curve.memory_efficiency * filled)
    matrix_s = 2.0 * elements * (work.rows + work.active * curve.padding_rows) / (silicon.peak_flops * curve.peak_efficiency)
    row_bytes = work.rows * ACTIVATION_BYTES * (2.0 * work.hidden + work.matrices * work.width)
    rows_s = row_bytes / (silicon.memory_bytes_per_s * curve.row_efficiency)
    joined_s = (memory_s**curve.joining + matrix_s**curve.joining) ** (1.0 / curve.joining)
    return np.asarray(curve.launch_s + curve.local_expert_s * work.local + rows_s + joined_s)
