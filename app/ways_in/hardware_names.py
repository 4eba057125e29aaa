"""Devices and node types by the names that people and drivers give them: ``H100``, ``A100-SXM4-80GB``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from meshwright.costmodels.cluster.cluster import NodeType
from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.hardware import devices_by_name, node_type, node_types_by_name
from meshwright.costmodels.names import nearest_name

_SAYS_NOTHING = re.compile(
    r"\b(?:nvidia|amd|huawei|tesla|geforce|instinct|gpus?|devices?|accelerators?|cards?|hbm[0-9]e?)\b", re.I
)
_SOCKET = re.compile(r"\bsxm[0-9]\b")
LONGEST_NAME = 64
"""Characters of a name that are looked at."""


def named_hardware(text: str, own: Mapping[str, NodeType] = MappingProxyType({})) -> tuple[NodeType, bool]:
    """Return the node type of a name and whether the name is that of a device, whose usual node it then is.

    ``own`` are a user's node types under their names and their devices'.

    Raises ClusterError with the nearest names where there is none, or more than one.
    """
    wanted = _plain(text)
    for name, node in own.items():
        if wanted in (_plain(name), _plain(f"{name}s")):
            return node, name == node.device.name
    devices, nodes = _devices(), _nodes()
    if wanted not in devices and wanted not in nodes and wanted.removesuffix("s") in {*devices, *nodes}:
        wanted = wanted.removesuffix("s")
    if wanted in devices:
        return _usual_node(devices[wanted], text), True
    if wanted in nodes:
        return nodes[wanted], False
    near = sorted({node.name for name, node in nodes.items() if len(wanted) > 2 and wanted in name})
    if len(near) == 1:
        return node_type(near[0]), False
    raise ClusterError("no device or node type has this name", given=text, allowed=_shown(), remedy=_remedy(wanted, near, own))


def _remedy(wanted: str, near: list[str], own: Mapping[str, NodeType]) -> str:
    if near:
        return f"say which: {', '.join(near)}"
    written = {**_as_written(), **{_plain(name): name for name in own}}
    close = nearest_name(wanted, written)
    if close is None:
        return (
            "take one of these, add your own ('meshwright hardware add'), or describe your own node type in a request file: "
            "'cluster.groups'"
        )
    return f"did you mean {written[close]!r}?"


def _usual_node(device: str, text: str) -> NodeType:
    """Return the node type that goes by one of the device's own names."""
    names = {name for name, record in devices_by_name().items() if record.name == device}
    for name in sorted(names):
        if name in node_types_by_name():
            return node_type(name)
    raise ClusterError(
        f"the catalogue has the device {device} but no node of it",
        given=text,
        allowed=_shown(),
        remedy="describe a node of it in a request file: 'cluster.groups' with 'node'",
    )


def _plain(text: str) -> str:
    """Return a name without case, makers, marks between words, and the generation of its socket."""
    words = _SOCKET.sub("sxm", _SAYS_NOTHING.sub(" ", text[:LONGEST_NAME].casefold().replace("-", " ")))
    return re.sub(r"[^a-z0-9.]+", "", words)


@cache
def _devices() -> dict[str, str]:
    """Names of devices as they are looked up, and of the device each means."""
    return {_plain(name): device.name for name, device in devices_by_name().items()}


@cache
def _nodes() -> dict[str, NodeType]:
    return {_plain(name): node for name, node in node_types_by_name().items()}


@cache
def _as_written() -> dict[str, str]:
    return {_plain(name): name for name in (*node_types_by_name(), *devices_by_name())}


def _shown() -> str:
    """Return the shortest name of every device that has a node, and every node type."""
    usual = sorted(name for name in devices_by_name() if name in node_types_by_name())
    return ", ".join((*usual, *sorted({node.name for node in node_types_by_name().values()})))
