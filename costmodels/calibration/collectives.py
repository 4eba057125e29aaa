"""Collective calibrations: latency and bandwidth share of each collective, by device and group size, with their error.

A device whose collectives were not measured has no curves, only the share of its fabric that rings reach.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from meshwright.costmodels.calibration.calibration import calibration_key, document_in_force, is_measured
from meshwright.costmodels.calibration.kernel_file import borrowed_collectives, borrowed_source, is_own
from meshwright.costmodels.calibration.kernels import KernelError
from meshwright.costmodels.errors import ClusterError


class Collective(StrEnum):
    """Communication of a rank group."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND_RECV = "send_recv"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True)
class GroupCurve:
    """Time of w bytes sent by each rank inside one node: the fastest of NCCL's protocols LL, LL128 and Simple.

        min over protocols of latency_s + w / (share B), Simple with root_s sqrt(w / 1 MB) more

    B is the fabric's bytes/s a device, one direction. The root is the power term: Simple's pipeline fills slowly.
    """

    latencies_s: tuple[float, float, float]
    shares: tuple[float, float, float]
    root_s: float


@dataclass(frozen=True, slots=True)
class CollectiveCalibration:
    """Collectives of one device inside its fabric.

    curves      by collective and group size; empty when none was measured
    link_share  share of the fabric's bandwidth that a ring of large messages reaches
    mesh_links  links a device has to its peers when they are joined pairwise: a group of n uses n - 1 of them;
                None when a switch gives every group the whole bandwidth
    """

    key: str
    curves: Mapping[Collective, Mapping[int, GroupCurve]]
    link_share: float
    mesh_links: int | None
    error: KernelError
    provenance: Mapping[str, str]

    def curve(self, kind: Collective, n: int) -> GroupCurve | None:
        """The curve of a group of n ranks, between and beyond the measured sizes; None without measurements."""
        measured = self.curves.get(kind)
        return _between_sizes(measured, n) if measured else None


def collective_calibration(key: str) -> CollectiveCalibration:
    """The shipped calibration of a key, or the measured or borrowed one of a name; raises ClusterError when there is none."""
    if is_measured(key):
        return _measured(key)
    if is_own(key):
        return _shipped(calibration_key(key))
    return _shipped(key) if borrowed_source(key) is None else _borrowed(key)


@lru_cache(maxsize=64)
def _borrowed(name: str) -> CollectiveCalibration:
    return read_collectives(borrowed_collectives(calibration_key(name), _shipped_document(borrowed_source(name) or "")))


@lru_cache(maxsize=64)
def _measured(name: str) -> CollectiveCalibration:
    return read_collectives(document_in_force(name)["collectives"])


@cache
def _shipped(key: str) -> CollectiveCalibration:
    return read_collectives(_shipped_document(key))


def _shipped_document(key: str) -> dict[str, Any]:
    folder = files("meshwright.costmodels.hardware").joinpath("calibrations", "collectives")
    known = sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))
    if key not in known:
        raise ClusterError(
            "no collective calibration of this name",
            given=key,
            allowed=", ".join(known),
            remedy="name the nearest device's calibration, or calibrate this one",
        )
    document: dict[str, Any] = json.loads(folder.joinpath(f"{key}.json").read_text(encoding="utf-8"))
    return document


def read_collectives(document: Mapping[str, Any]) -> CollectiveCalibration:
    """The calibration that a decoded file describes; ``base`` names the device whose curves it shares."""
    curves: dict[Collective, Mapping[int, GroupCurve]] = {
        Collective(kind): {int(n): read_group_curve(curve) for n, curve in by_size.items()}
        for kind, by_size in document.get("curves", {}).items()
    }
    mesh_links = document.get("mesh_links")
    if "base" in document:
        base = collective_calibration(document["base"])
        curves = {kind: {**base.curves.get(kind, {}), **curves.get(kind, {})} for kind in {**base.curves, **curves}}
        mesh_links = document.get("mesh_links", base.mesh_links)
    return CollectiveCalibration(
        key=document["key"],
        curves=curves,
        link_share=document["link_share"],
        mesh_links=mesh_links,
        error=KernelError(**document["error"]),
        provenance=document["provenance"],
    )


def read_group_curve(entry: Mapping[str, Any]) -> GroupCurve:
    """The curve of one entry of a calibration file."""
    return GroupCurve(tuple(entry["latencies_s"]), tuple(entry["shares"]), entry["root_s"])


def _between_sizes(measured: Mapping[int, GroupCurve], n: int) -> GroupCurve:
    """Constants at n: linear in log2 n between measured sizes; beyond them latencies go on, shares stay."""
    sizes = sorted(measured)
    if n in measured or len(sizes) == 1:
        return measured[n if n in measured else sizes[0]]
    upper = next((index for index in range(1, len(sizes)) if sizes[index] >= n), len(sizes) - 1)
    low, high = measured[sizes[upper - 1]], measured[sizes[upper]]
    way = math.log2(n / sizes[upper - 1]) / math.log2(sizes[upper] / sizes[upper - 1])
    held = min(max(way, 0.0), 1.0)

    def latency(protocol: int) -> float:
        low_s, high_s = low.latencies_s[protocol], high.latencies_s[protocol]
        return max(low_s + way * (high_s - low_s), min(low_s, high_s))

    def share(protocol: int) -> float:
        return low.shares[protocol] + held * (high.shares[protocol] - low.shares[protocol])

    return GroupCurve(
        latencies_s=(latency(0), latency(1), latency(2)),
        shares=(share(0), share(1), share(2)),
        root_s=low.root_s + held * (high.root_s - low.root_s),
    )
