"""The hardware catalogue: accelerators and node types, one data file each, every figure with its source.

Names are file names; a file may list aliases ("h100" for "h100-sxm-80gb"). A node type with the alias of a device is the usual
node of it. Files are read once a process. A device is added by its file, which names its calibration, the one that it
``borrows`` if it has none, and its generation, and a generation by its own: nothing else knows devices by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from meshwright.costmodels.cluster.cluster import UNTOLD_RATES, Device, Link, NodeType, SustainedRates
from meshwright.costmodels.errors import ClusterError, did_you_mean
from meshwright.costmodels.hardware.generations import generation
from meshwright.costmodels.units import DType

Record = TypeVar("Record", Device, NodeType)


def device(name: str) -> Device:
    """The accelerator of a name or alias; raises ClusterError when the catalogue has none."""
    return _named(_devices(), name, kind="device")


def node_type(name: str) -> NodeType:
    """The node type of a name or alias; raises ClusterError when the catalogue has none."""
    return _named(_node_types(), name, kind="node type")


def devices() -> tuple[Device, ...]:
    """Every accelerator of the catalogue, by name."""
    return _distinct(_devices())


def node_types() -> tuple[NodeType, ...]:
    """Every node type of the catalogue, by name."""
    return _distinct(_node_types())


def devices_by_name() -> Mapping[str, Device]:
    """Every accelerator under each of its names and aliases."""
    return _devices()


def node_types_by_name() -> Mapping[str, NodeType]:
    """Every node type under each of its names and aliases."""
    return _node_types()


@cache
def _devices() -> Mapping[str, Device]:
    found: dict[str, Device] = {}
    for document in _documents("devices"):
        aliases = document.pop("aliases")
        generation(document.pop("generation"))
        if "borrows" in document:
            document["calibration"] += f"~{document.pop('borrows')}"
        peaks = {DType(dtype): peak for dtype, peak in document.pop("peak_flops").items()}
        told = document.pop("sustained", None)
        sustained = UNTOLD_RATES if told is None else SustainedRates(**told)
        record = Device(peak_flops=peaks, sustained=sustained, **document)
        found.update(dict.fromkeys((record.name, *aliases), record))
    return found


@cache
def _node_types() -> Mapping[str, NodeType]:
    found: dict[str, NodeType] = {}
    for document in _documents("nodes"):
        aliases = document.pop("aliases")
        intra, inter = Link(**document.pop("intra")), Link(**document.pop("inter"))
        record = NodeType(device=device(document.pop("device")), intra=intra, inter=inter, **document)
        found.update(dict.fromkeys((record.name, *aliases), record))
    return found


def _documents(folder: str) -> Iterator[dict[str, Any]]:
    entries = (entry for entry in files(__name__).joinpath(folder).iterdir() if entry.name.endswith(".json"))
    for entry in sorted(entries, key=lambda entry: entry.name):
        yield json.loads(entry.read_text(encoding="utf-8"))


def _named(records: Mapping[str, Record], name: str, *, kind: str) -> Record:
    try:
        return records[name]
    except KeyError:
        raise ClusterError(
            f"unknown {kind}",
            given=name,
            allowed=", ".join(sorted(records)),
            remedy=did_you_mean(name, records, otherwise=f"choose one, or describe your own {kind}"),
        ) from None


def _distinct(records: Mapping[str, Record]) -> tuple[Record, ...]:
    return tuple(records[name] for name in sorted({record.name for record in records.values()}))
