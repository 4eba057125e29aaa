"""A cluster as people say it: ``8xH100``, ``3x8xH100@400Gb``, ``64xGB200``, ``h100:8``, ``5 of 8 H100``, ``2x dgx-h100``.

    cluster   part (+ part)*
    part      [nodes x] [devices x] name [@ network]      devices of a device; nodes of a node type
              name : devices, name x devices, devices of [size] name, nodes of [devices] name
    network   speed, or cards x speed: what a node has in all

Devices that fill no node are a node of fewer, with its share of the network. Parts with other nodes are groups of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from types import MappingProxyType

from meshwright.app.base.figures import NETWORK_CARD, read_quantity
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, NodeType, part_of_node
from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.hardware import devices_by_name, node_type, node_types_by_name
from meshwright.costmodels.names import nearest_name

LONGEST = 400
"""Characters that the words of a cluster may have."""
EXAMPLES = "8xH100, 3x8xH100@400Gb (three nodes of eight), 64xGB200, 5 of 8 H100, 2x dgx-h100, 8xH100 + 8xA100"

_TIMES = r"\s*(?:[x×*]|(?<=[0-9])\s(?!of\b))\s*"
_COUNTS = re.compile(
    rf"(?P<first>[0-9]{{1,7}}){_TIMES}(?:(?P<second>[0-9]{{1,7}})\s*(?:[x×*])\s*)?(?P<name>[^0-9\s].*|[0-9].*)", re.IGNORECASE
)
_NODES_OF = re.compile(
    r"(?P<first>[0-9]{1,7})\s*(?:nodes?|hosts?|servers?|machines?|box(?:es)?|racks?)"
    r"\s*(?:of|with|,|:|(?=[0-9]))\s*(?:(?P<second>[0-9]{1,7})\s*[x×*]?\s*(?=\S))?(?P<name>.+)",
    re.IGNORECASE,
)
_PART_OF = re.compile(
    r"(?P<first>[0-9]{1,7})\s*(?:out\s+)?of\s+(?:the\s+|an?\s+)?(?:(?P<whole>[0-9]{1,7})\s*[x×*]?\s*(?=\S))?(?P<name>.+)",
    re.IGNORECASE,
)
_COUNT_LAST = re.compile(r"(?P<name>[^:]+?)\s*[:x×*]\s*(?P<first>[0-9]{1,7})", re.IGNORECASE)


_NUMBERS = (
    *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"),
)
_SPOKEN = re.compile(rf"(?<!of )\b({'|'.join((*_NUMBERS, 'an?'))})\s+(?=\S)", re.IGNORECASE)
_FILLING = re.compile(
    r"(?<=\s)(?:free|available|idle|spare|unused)\s+(?=\S)|\s+(?:each|apiece|per\s+(?:node|host|server|machine))\b",
    re.IGNORECASE,
)
_PARTS = re.compile(r"\s*\+\s*|\s+and\s+|(?<!nodes)(?<!hosts)(?<!servers)(?<!machines)(?<!racks)\s*,\s*")


class _Counted(Enum):
    """The things that the last number of a part counts."""

    AS_NAMED = "devices of a device, nodes of a node type"
    DEVICES = "devices"
    NODES = "nodes"


@dataclass(frozen=True, slots=True)
class _Part:
    """A part in words: its numbers from left to right, its name, what the last number counts if the words say it, and the
    devices of a whole node where they are said."""

    counts: tuple[int, ...]
    name: str
    counted: _Counted = _Counted.AS_NAMED
    whole: int | None = None


def cluster_of_words(text: str, own: Mapping[str, NodeType] = MappingProxyType({})) -> Cluster:
    """Return the cluster that the words say; raises ClusterError with what is allowed and the nearest name.

    ``own`` are a user's node types under their names and their devices'.
    """
    if not text.strip() or len(text) > LONGEST:
        raise ClusterError("these words name no cluster", given=text[:LONGEST], allowed=EXAMPLES)
    nodes = [group for part in _PARTS.split(_in_figures(text.strip())) for group in _groups(part, text, own)]
    return Cluster(groups=tuple(_named(nodes)))


def _in_figures(text: str) -> str:
    """Return the words with numbers in figures and without words that say nothing: ``two hosts, eight free H100 each``."""
    counted = _SPOKEN.sub(lambda word: f"{_NUMBERS.index(number) + 1 if (number := word[1].lower()) in _NUMBERS else 1} ", text)
    return _FILLING.sub("", counted)


def _groups(words: str, text: str, own: Mapping[str, NodeType]) -> list[tuple[NodeType, int]]:
    """Node types and numbers of nodes of one part."""
    said, _, network = words.partition("@")
    part = _read(said.strip(), text)
    node, is_device = named_hardware(part.name, own)
    if part.whole is not None and part.whole != node.devices_per_node:
        raise ClusterError(
            f"a {node.name} has another number of devices",
            given=part.whole,
            allowed=str(node.devices_per_node),
            remedy=f"say: {part.counts[0]} of {node.devices_per_node} {part.name}",
        )
    counts_devices = (
        (is_device and part.counted is not _Counted.NODES) or part.counted is _Counted.DEVICES or len(part.counts) == 2
    )
    groups = _of_devices(part, node) if counts_devices else [(node, part.counts[0])]
    if network:
        groups = [(_with_network(each, network.strip()), count) for each, count in groups]
    return groups


def _of_devices(part: _Part, node: NodeType) -> list[tuple[NodeType, int]]:
    """Nodes that hold so many devices: equal ones as they are said, else full ones and what is left on one more."""
    per_node = node.devices_per_node
    if len(part.counts) == 2:
        nodes, devices = part.counts
        if devices > per_node:
            raise ClusterError(
                f"a {node.name} has fewer devices",
                given=devices,
                allowed=f"1 to {per_node} of a node",
                remedy=f"say how many in all: {nodes * devices}x{part.name}",
            )
        return [(part_of_node(node, devices), nodes)]
    whole, rest = divmod(part.counts[0], per_node)
    return [(node, whole)] * bool(whole) + [(part_of_node(node, rest), 1)] * bool(rest)


def _read(words: str, text: str) -> _Part:
    for form in (_NODES_OF, _PART_OF, _COUNTS, _COUNT_LAST):
        found = form.fullmatch(words)
        if found is None:
            continue
        fields = found.groupdict()
        counts = tuple(int(fields[name]) for name in ("first", "second") if fields.get(name))
        if 0 in counts:
            raise ClusterError("a cluster of no devices", given=text, allowed="1 or more of each", remedy=f"say: {EXAMPLES}")
        if form is _NODES_OF:
            counted = _Counted.AS_NAMED if len(counts) == 2 else _Counted.NODES
        else:
            counted = _Counted.DEVICES if form is _PART_OF else _Counted.AS_NAMED
        return _Part(counts, fields["name"].strip(), counted, int(fields["whole"]) if fields.get("whole") else None)
    if not words or words[0].isdigit():
        raise ClusterError("these words name no cluster", given=text, allowed=EXAMPLES)
    return _Part((1,), words)


def _with_network(node: NodeType, words: str) -> NodeType:
    """Return the node with the network that is said: a speed, or cards and the speed of each."""
    cards = re.fullmatch(r"(?P<cards>[0-9]{1,4})\s*[x×*]\s*(?P<speed>.+)", words)
    speed = read_quantity(cards["speed"] if cards else words, NETWORK_CARD, what="the network after '@'")
    bytes_per_s = speed * (int(cards["cards"]) if cards else 1)
    if not bytes_per_s:
        raise ClusterError("a network of no speed", given=words, allowed=NETWORK_CARD.example)
    name = f"{bytes_per_s * 8 / 1e9:g} Gb/s"
    return replace(node, inter=replace(node.inter, name=name, bytes_per_s=bytes_per_s))


def _named(nodes: list[tuple[NodeType, int]]) -> list[NodeGroup]:
    """Node groups under the names of their types, told apart by a number where two have one."""
    groups: list[NodeGroup] = []
    taken: set[str] = set()
    for node, count in nodes:
        name, number = node.name, 2
        while name in taken:
            name, number = f"{node.name}-{number}", number + 1
        taken.add(name)
        groups.append(NodeGroup(name=name, node=node, nodes=count))
    return groups


# Devices and node types by the names that people and drivers give them: ``H100``, ``A100-SXM4-80GB``.

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
