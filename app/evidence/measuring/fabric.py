"""The network between nodes as a calibration of a cluster: the script that measures it, and its measurements as a document.

A document (meshwright.fabric-calibration/1) holds curves relative to the line rates that the cluster's node types state, and
those rates: on nodes of other networks it is refused.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Annotated, Any, Literal

import rfc8785
from annotated_types import Interval, Len

from meshwright.app.base.records import read_record
from meshwright.app.requests.calibrations import read_calibration_document
from meshwright.costmodels.calibration.calibration import Calibration
from meshwright.costmodels.calibration.collectives import Collective
from meshwright.costmodels.calibration.networks import FABRIC_SCHEMA, fabric_key, line_rates
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.fitting.fabric import FabricRow, FittedFabric, fit_fabric
from meshwright.costmodels.fitting.samples import SampleError
from meshwright.costmodels.units import STRICT_RECORD, Name, PositiveInt

MOST_ROWS = 100_000
MOST_RANKS = 2**20
LONGEST_S, LARGEST_BYTES = 3600.0, 2.0**45


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A row of the script's file."""

    __pydantic_config__ = STRICT_RECORD

    collective: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
    ranks: Annotated[int, Interval(ge=2, le=MOST_RANKS)]
    ranks_per_node: Annotated[int, Interval(ge=1, le=MOST_RANKS)]
    groups_per_node: Annotated[int, Interval(ge=1, le=MOST_RANKS)]
    message_bytes: Annotated[float, Interval(gt=0.0, le=LARGEST_BYTES)]
    time_s: Annotated[float, Interval(gt=1e-9, le=LONGEST_S)]


@dataclass(frozen=True, slots=True)
class FabricMeasurements:
    """The file that the script writes."""

    __pydantic_config__ = STRICT_RECORD

    schema: Literal["meshwright.fabric-measurements/1"]
    nodes: PositiveInt
    devices_per_node: PositiveInt
    device: Name
    backend: Name
    software: Name
    rows: Annotated[tuple[MeasuredRow, ...], Len(1, MOST_ROWS)]


@dataclass(frozen=True, slots=True)
class FabricCalibration:
    """A calibration of a network, and its fit with the scores."""

    calibration: Calibration
    fitted: FittedFabric


def script_text() -> str:
    """The text of the script that measures a network; it needs PyTorch alone."""
    return files("meshwright.app.evidence.measuring").joinpath("fabric_script.py").read_text(encoding="utf-8")


def fit_measurements(document: object, cluster: Cluster, name: str) -> FabricCalibration:
    """The calibration of the network of a cluster under a name; raises DocumentError for a file that is none of the script's,
    SampleError for one that was measured on another cluster or does not suffice."""
    measured = read_record(FabricMeasurements, document, what="file of network measurements")
    _check_nodes(measured, cluster)
    rows = [
        FabricRow(Collective(row.collective), row.ranks, row.ranks_per_node, row.groups_per_node, row.message_bytes, row.time_s)
        for row in measured.rows
    ]
    fitted = fit_fabric(rows, cluster)
    return FabricCalibration(read_calibration_document(_document(measured, fitted, cluster, fabric_key(name))), fitted)


def _check_nodes(measured: FabricMeasurements, cluster: Cluster) -> None:
    """Refuse measurements of nodes that are not the cluster's."""
    for group in cluster.groups:
        if group.node.devices_per_node != measured.devices_per_node:
            raise SampleError(
                "the measured nodes have another number of devices than the cluster's",
                given=f"{measured.devices_per_node} devices a node",
                allowed=f"{group.node.devices_per_node}, those of {group.node.name}",
                remedy="measure all devices of a node; the script's --devices-per-node says how many a rack has",
            )


def _document(measured: FabricMeasurements, fitted: FittedFabric, cluster: Cluster, key: str) -> dict[str, Any]:
    shares = [curve.share for by_shape in fitted.curves.values() for curve in by_shape.values()]
    share = float(f"{math.exp(sum(map(math.log, shares)) / len(shares)):.4g}")
    median, p95 = (round(value, 4) for value in fitted.error)
    told = f"{measured.nodes} nodes of {measured.devices_per_node} {measured.device}, {measured.backend}"
    rows = [asdict(row) for row in measured.rows]
    return {
        "schema": FABRIC_SCHEMA,
        "key": key,
        "line_rates": line_rates(cluster),
        "measured": {"nodes": measured.nodes, "devices_per_node": measured.devices_per_node, "backend": measured.backend},
        "share": share,
        "slow": float(f"{share / (1.0 + p95):.4g}"),
        "fast": float(f"{share * (1.0 + p95):.4g}"),
        "rank_s": 0.0,
        "curves": {
            kind.value: {str(here): asdict(curve) for here, curve in sorted(by_shape.items())}
            for kind, by_shape in sorted(fitted.curves.items())
        },
        "error": {"median": median, "p95": p95, "basis": f"{len(rows)} message sizes, each left out once"},
        "basis": f"{told}; {len(rows)} rows, each size left out once",
        "alone": {kind.value: round(ratio, 4) for kind, ratio in fitted.alone.items()},
        "scores": [
            {
                "name": score.name,
                "rows": score.rows,
                "median": round(score.median, 5),
                "p95": round(score.p95, 5),
                "unseen": None if score.unseen is None else [round(value, 5) for value in score.unseen],
            }
            for score in fitted.scores
        ],
        "provenance": {f"meshwright calibrate fabric: {told}": f"{len(rows)} rows, {measured.software}"},
        "samples": {"digest": _digest(rows), "rows": len(rows), "kinds": _counted(measured)},
        "software": [measured.software],
    }


def _counted(measured: FabricMeasurements) -> Mapping[str, int]:
    kinds = [row.collective for row in measured.rows]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def _digest(rows: list[dict[str, Any]]) -> str:
    return f"sha256:{hashlib.sha256(rfc8785.dumps(rows)).hexdigest()}"
