"""The reference that fitted curves are relative to: a device's data sheet, or the best that was measured where there is
none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.costmodels.calibration.calibration import calibration_key
from meshwright.costmodels.calibration.collectives import collective_calibration
from meshwright.costmodels.calibration.kernel_file import kernel_calibration
from meshwright.costmodels.cluster.cluster import NodeType
from meshwright.costmodels.fitting.samples import COLLECTIVE_KINDS, VECTOR_KINDS, SampleError, SampleKind, Samples
from meshwright.costmodels.hardware import node_types
from meshwright.costmodels.network.collectives import bytes_per_rank
from meshwright.costmodels.units import DType

SAME_DEVICE: Mapping[str, Any] = {
    "gemm_efficiency": 1.0,
    "attention_efficiency": 1.0,
    "cache_bandwidth": 1.0,
    "corrections": "kept",
}
"""The factors by which the shipped curves of a device stand for itself: unchanged, with their own errors."""


@dataclass(frozen=True, slots=True)
class Board:
    """Peaks that efficiencies are shares of.

    cores              compute units that tiles are spread over (SMs, CUs; threads of a CPU)
    link_bytes_per_s   one direction of the fabric inside a node, per device
    link_share         share of it that rings of large messages reach
    mesh_links         links to its peers where devices are joined pairwise (CollectiveCalibration), else None
    base               entry of a kernel calibration document whose curves stand for kinds not measured
    collectives_base   the same of a collective calibration document: a key
    source             where the figures come from
    """

    key: str
    cores: int
    peak_flops: Mapping[DType, float]
    memory_bytes_per_s: float
    link_bytes_per_s: float
    link_share: float
    mesh_links: int | None
    base: Mapping[str, Any] | None
    collectives_base: str | None
    source: str


def board_of(samples: Samples, *, key: str, node: NodeType | None, cores: int) -> Board:
    """The board that samples of a device key were measured on.

    The given node type, or the catalogue's first whose device has this key; where the catalogue has none, the best that
    was measured, ``cores`` being the device's compute units. Raises SampleError when nothing tells the peaks.
    """
    found = node or next((known for known in node_types() if calibration_key(known.device.calibration) == key), None)
    return _measured_board(samples, key, cores) if found is None else _catalogue_board(key, found)


def _catalogue_board(key: str, node: NodeType) -> Board:
    board, shipped = node.device, node.device.calibration
    collectives = collective_calibration(shipped)
    return Board(
        key=key,
        cores=kernel_calibration(shipped).cores,
        peak_flops=board.peak_flops,
        memory_bytes_per_s=board.memory_bytes_per_s,
        link_bytes_per_s=node.intra.bytes_per_s,
        link_share=collectives.link_share,
        mesh_links=collectives.mesh_links,
        base={"key": shipped, **SAME_DEVICE},
        collectives_base=shipped,
        source=f"catalogue: {node.name}, {board.name}",
    )


def _measured_board(samples: Samples, key: str, cores: int) -> Board:
    gemm = samples.of_kind(SampleKind.GEMM)
    if not len(gemm):
        raise SampleError(
            "the catalogue has no device of this key, and no products were measured that would tell its peak",
            given=key,
            remedy="measure products as well, or use the key of a device of the catalogue",
        )
    rate = 2 * gemm.m * gemm.n * gemm.k * gemm.batch / gemm.time_s
    peaks = {DType(dtype): float(rate[gemm.dtype == dtype].max()) for dtype in sorted(set(gemm.dtype.tolist()))}
    vector = samples.where(np.isin(samples.kind, [kind.value for kind in VECTOR_KINDS]))
    return Board(
        key=key,
        cores=cores,
        peak_flops=peaks,
        memory_bytes_per_s=float((vector.moved_bytes / vector.time_s).max()) if len(vector) else 1.0,
        link_bytes_per_s=_fastest_link_bytes_per_s(samples),
        link_share=1.0,
        mesh_links=None,
        base=None,
        collectives_base=None,
        source="the best that was measured",
    )


def _fastest_link_bytes_per_s(samples: Samples) -> float:
    """The highest rate at which a rank sent; without collectives one that matters to nothing."""
    best = 1.0
    for kind, collective in COLLECTIVE_KINDS.items():
        rows = samples.of_kind(kind)
        for moved, ranks, time_s in zip(rows.moved_bytes, rows.ranks, rows.time_s, strict=True):
            best = max(best, float(bytes_per_rank(collective, int(ranks), float(moved))) / float(time_s))
    return best
