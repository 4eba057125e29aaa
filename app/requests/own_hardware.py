"""Node types of a user's own, kept as files on this machine, which requests name as they name those of the catalogue.

Each is the document of a node type as a request writes it, in ``meshwright/hardware`` of the user's data folder (XDG base
directory specification). The service reads none: its requests carry every figure.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.app.base.documents import parse_document
from meshwright.app.base.figures import BANDWIDTH, COMPUTE, NETWORK_CARD, SIZE, read_quantity
from meshwright.app.base.records import read_record
from meshwright.costmodels.cluster.cluster import NodeType
from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.hardware import devices_by_name, node_types, node_types_by_name

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ENDING = ".json"
_LARGEST_FILE = 2**20
GIVEN = "given by the user"


@dataclass(frozen=True, slots=True)
class DataSheet:
    """A device by the words of its data sheet, and the node that holds it; None is what is not given.

    ``bf16``, ``fp8`` and ``fp4`` are dense peaks, ``fabric`` what a device sends inside the node, ``network`` what the node
    sends in all, both in one direction.
    """

    name: str
    memory: str
    bandwidth: str
    bf16: str
    fabric: str
    network: str
    fp8: str | None = None
    fp4: str | None = None
    per_node: int = 8
    power_w: float | None = None
    price_per_hour: float | None = None
    calibration: str | None = None


def own_folder() -> Path:
    """The folder that holds the files; a relative XDG_DATA_HOME is ignored, as the specification says."""
    data_home = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (data_home if data_home.is_absolute() else Path.home() / ".local" / "share") / "meshwright" / "hardware"


def own_nodes() -> dict[str, NodeType]:
    """Return the node types of this machine's user under their names and their devices'; raises InvalidInputError for a file
    that holds none."""
    found: dict[str, NodeType] = {}
    for path in sorted(own_folder().glob(f"*{_ENDING}")):
        what = f"hardware file {path}"
        if path.stat().st_size > _LARGEST_FILE:
            raise ClusterError(f"the {what} is too large", given=path.stat().st_size, allowed=f"up to {_LARGEST_FILE} bytes")
        node = read_record(NodeType, parse_document(path.read_bytes(), what=what), what=what)
        found |= {node.name: node, node.device.name: node}
    return found


def keep_node(document: Mapping[str, Any]) -> tuple[NodeType, Path]:
    """Keep a node type under its name; raises InvalidInputError for a document of none and for names that are taken."""
    node = read_record(NodeType, document, what="node type")
    taken = {**devices_by_name(), **node_types_by_name()}
    for name in (node.name, node.device.name):
        if _NAME.fullmatch(name) is None:
            raise ClusterError("a name that can't be kept", given=name, allowed="letters, digits, '.', '_' and '-', up to 63")
        if name.casefold() in taken:
            raise ClusterError("the catalogue has this name", given=name, allowed="a name of your own")
    path = own_folder() / f"{node.name}{_ENDING}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return node, path


def node_of(sheet: DataSheet) -> dict[str, Any]:
    """Return the document of a node of the data sheet's device.

    Latencies are those of the catalogue's node type whose fabric or network is nearest in speed.
    """
    peaks = {"bf16": sheet.bf16, "fp8": sheet.fp8, "fp4": sheet.fp4}
    peak_flops = {kind: read_quantity(said, COMPUTE, what=f"--{kind}") for kind, said in peaks.items() if said is not None}
    memory_bytes = round(read_quantity(sheet.memory, SIZE, what="--memory"))
    sources: dict[str, str] = {}
    links: dict[str, dict[str, Any]] = {}
    for field, option, said, kind in (
        ("intra", "--fabric", sheet.fabric, BANDWIDTH),
        ("inter", "--network", sheet.network, NETWORK_CARD),
    ):
        speed = read_quantity(said, kind, what=option)
        near = _nearest(speed, {node: getattr(node, field).bytes_per_s for node in _by_name()})
        links[field] = {"name": field, "bytes_per_s": speed, "latency_s": getattr(near, field).latency_s}
        sources |= {field: GIVEN, f"{field}.latency_s": f"not given: that of {near.name}"}
    given = {"power_w": sheet.power_w, "price_per_hour": sheet.price_per_hour, "calibration": sheet.calibration}
    device = {
        "name": sheet.name,
        "memory_bytes": memory_bytes,
        "peak_flops": peak_flops,
        "memory_bytes_per_s": read_quantity(sheet.bandwidth, BANDWIDTH, what="--bandwidth"),
        **{field: value for field, value in given.items() if value is not None},
        "sources": {"peak_flops": GIVEN, "memory_bytes": GIVEN, "memory_bytes_per_s": GIVEN},
    }
    node = {"name": f"{sheet.name}-{sheet.per_node}x", "device": device, "devices_per_node": sheet.per_node}
    return {**node, **links, "sources": sources}


def _by_name() -> tuple[NodeType, ...]:
    return tuple(sorted(node_types(), key=lambda node: node.name))


def _nearest(value: float, of: Mapping[NodeType, float]) -> NodeType:
    """Return the node type whose figure is nearest in ratio, the first by name of two equally near."""
    if value <= 0.0:
        raise ClusterError("a speed of nothing", given=value, allowed="above 0")
    return min(of, key=lambda node: max(of[node] / value, value / of[node]))
