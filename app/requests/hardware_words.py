"""Devices and node types by the names that people, drivers and clouds give them: ``H100``, ``A100-SXM4-80GB``, ``p5.48xlarge``.

A name is looked for in the words as a whole, the longest first. The size of memory and the form of the board beside it choose
among the boards of one name: ``A100 40GB PCIe``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from types import MappingProxyType

from meshwright.app.requests.cloud_machines import cloud_machines
from meshwright.costmodels.cluster.cluster import Device, Link, NodeType
from meshwright.costmodels.errors import ClusterError, nearest_name
from meshwright.costmodels.hardware import devices, devices_by_name, node_type, node_types, node_types_by_name
from meshwright.costmodels.hardware.generations import generation_of

LONGEST_NAME = 64
"""Characters of an unknown name that errors show and that are compared."""

ADD_YOUR_OWN = (
    "add your own by its data sheet: meshwright hardware add NAME --bf16 165TFLOPS --memory 24GiB --bandwidth 1008GB/s "
    "--fabric 25GB/s --network 100Gb (peak of 16-bit products, memory and its bandwidth, what a device sends inside the node, "
    "what a node sends)"
)

_ALSO: Mapping[str, str] = {
    **dict.fromkeys(("ascend-910b1", "ascend-910b2", "ascend-910b3", "910b1", "910b2", "910b3"), "ascend-910b"),
    **dict.fromkeys(("dgx-gb200", "dgx-gb200-nvl72", "nvl72-gb200"), "gb200-nvl72"),
    **dict.fromkeys(("dgx-gb300", "dgx-gb300-nvl72", "nvl72-gb300"), "gb300-nvl72"),
    **dict.fromkeys(("dgx-vr200", "vr200-nvl72", "vera-rubin", "dgx-vr200-nvl72"), "vr200-nvl72"),
    **dict.fromkeys(("dgx-1", "dgx-v100"), "dgx-1-v100"),
    **dict.fromkeys(("rtx-pro-6000-blackwell", "rtx-6000-pro", "pro-6000", "rtx-6000-blackwell"), "rtx-pro-6000"),
    **dict.fromkeys(("rtx-pro-6000-blackwell-workstation-edition", "rtx-pro-6000-workstation-edition"), "rtx-pro-6000"),
    **dict.fromkeys(("rtx-pro-6000-blackwell-server-edition", "rtx-pro-6000-server-edition"), "rtx-pro-6000"),
    **dict.fromkeys(("rtx-5000-pro", "rtx-pro-5000-blackwell"), "rtx-pro-5000"),
    **dict.fromkeys(("rtx-6000-ada-generation", "ada-6000", "ada-rtx-6000"), "rtx-6000-ada"),
    "grace-hopper": "gh200",
    "a100-pcie-80gb": "a100-pcie",
    "h200-pcie": "h200-nvl",
    "trillium": "tpu-v6e",
    "ironwood": "tpu-v7",
}
"""Names that are no aliases of the catalogue, of one thing each."""

_SEVERAL: Mapping[str, tuple[str, ...]] = {
    "rtx-6000": ("rtx-6000-ada", "quadro-rtx-6000", "rtx-pro-6000"),
    "rtx-5000": ("rtx-5000-ada", "rtx-pro-5000"),
    "nvl72": ("gb200-nvl72", "gb300-nvl72", "vr200-nvl72"),
}
"""Names that several things have, of which the size of memory chooses where it is said."""

_SHAPE = r"[0-9]{1,2}x[0-9]{1,2}(?:x[0-9]{1,2})?"
_SLICE = re.compile(
    r"(?:(?<=[0-9][x×*])|(?<![a-z0-9]))(?:tpu[\s_-]*)?(?P<kind>v5litepod|v5e|v6e|v5p|v4|trillium)(?:"
    rf"-(?P<size>[0-9]{{1,5}})(?![a-z0-9.-])(?:\s*\(?(?P<shape>{_SHAPE})\)?(?![a-z0-9]))?"
    rf"|[\s-]\(?(?P<alone>{_SHAPE})\)?(?![a-z0-9]))",
    re.IGNORECASE,
)
_CORES_OF_A_CHIP = {"v4": 2, "v5p": 2}
"""A slice is named by its TensorCores, of which chips of these kinds have two (Google Cloud, TPU versions)."""


class BoardForm(Enum):
    """The form of a board that its words say."""

    SXM = "sxm"
    PCIE = "pcie"
    UNSAID = ""


@dataclass(frozen=True, slots=True)
class Bridge:
    """NVLink bridges of a PCIe board: the most boards that they join, and one direction in bytes a second."""

    boards: int
    bytes_per_s: float


_BRIDGES: Mapping[str, Bridge] = {
    "a100-pcie": Bridge(2, 300e9),
    "a800-pcie": Bridge(2, 200e9),
    "h100-pcie": Bridge(2, 300e9),
    "h800-pcie": Bridge(2, 200e9),
    "h100-nvl": Bridge(2, 300e9),
    "h200-nvl": Bridge(4, 450e9),
    "a30": Bridge(2, 100e9),
    "a40": Bridge(2, 56.25e9),
    "rtx-a6000": Bridge(2, 56.25e9),
    "rtx-a5000": Bridge(2, 56.25e9),
    "rtx-a4500": Bridge(2, 56.25e9),
    "rtx-3090": Bridge(2, 56.25e9),
    "rtx-3090-ti": Bridge(2, 56.25e9),
    "rtx-2080-ti": Bridge(2, 50e9),
    "quadro-rtx-6000": Bridge(2, 50e9),
    "quadro-rtx-8000": Bridge(2, 50e9),
    "titan-rtx": Bridge(2, 50e9),
}
"""By the device's family: the boards' data sheets, which give both directions together; written from memory of them, not
checked against them."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """A node type that words name, and whether they name its device."""

    node: NodeType
    is_device: bool


@dataclass(frozen=True, slots=True)
class Named:
    """The place of a name in words, and the things that it may mean."""

    start: int
    end: int
    means: tuple[Hardware, ...]
    words: str


def names_in(text: str, own: Mapping[str, NodeType] = MappingProxyType({})) -> list[Named]:
    """Return the names of hardware in words, from left to right; of overlapping ones the longest."""
    found = [
        Named(match.start(), match.end(), (Hardware(_slice_of(match), False),), match[0]) for match in _SLICE.finditer(text)
    ]
    taken = [range(each.start, each.end) for each in found]
    own_names = {name: (Hardware(node, name == node.device.name),) for name, node in own.items()}
    for pattern, known in ((_pattern(own_names), own_names), (_catalogue_pattern(), _lexicon())):
        if not known:
            continue
        by_key = {_key(name): means for name, means in known.items()}
        for match in pattern.finditer(text):
            if not any(match.start(1) < place.stop and place.start < match.end(1) for place in taken):
                said = Named(match.start(1), match.end(1), _meant(match[1], by_key[_key(match[1])]), match[1])
                # The plural's letter belongs to the name.
                found.append(replace(said, end=match.end()))
                taken.append(range(match.start(1), match.end()))
    return sorted(found, key=lambda each: each.start)


_SOCKET = re.compile(r"(?:oam|sxm[2-6]?)$", re.IGNORECASE)


def _meant(words: str, means: tuple[Hardware, ...]) -> tuple[Hardware, ...]:
    """Return what a name means: a device and the form of its board are the device, though a node type may have that name.

    As the catalogue writes it, it is the node type: ``mi300x-oam``.
    """
    device, found = _SOCKET.subn("", words)
    boards = _lexicon_by_key().get(_key(device.rstrip(" \t_-")), ()) if found else ()
    is_board = [each.node for each in boards if each.is_device] == [each.node for each in means]
    return boards if is_board and words not in [each.node.name for each in means] else means


def _slice_of(match: re.Match[str]) -> NodeType:
    """Return a slice of TPUs as one domain: the fabric joins all its hosts."""
    kind = match["kind"].lower()
    cores = _CORES_OF_A_CHIP.get(kind, 1)
    host = node_type({"v4": "tpu-v4"}.get(kind, kind))
    shape = match["shape"] or match["alone"]
    chips = math.prod(map(int, shape.lower().split("x"))) if shape else int(match["size"]) // cores
    size = int(match["size"] or chips * cores)
    if not chips or size != chips * cores:
        raise ClusterError(
            "no slice of TPUs has this size",
            given=match[0],
            allowed=f"its TensorCores, {cores} of a chip" + (f", and a shape of {size // cores} chips" if shape else ""),
        )
    per_host = min(chips, host.devices_per_node)
    inter = replace(host.inter, bytes_per_s=host.inter.bytes_per_s * chips / host.devices_per_node)
    memory = round(host.host_memory_bytes * max(1.0, chips / host.devices_per_node))
    return replace(
        host, name=f"{kind}-{size}", devices_per_node=chips, devices_per_host=per_host, inter=inter, host_memory_bytes=memory
    )


@cache
def _lexicon() -> Mapping[str, tuple[Hardware, ...]]:
    """What each name of the catalogue, of clouds and of people means; a name of a device and a node type is the device."""
    known: dict[str, tuple[Hardware, ...]] = {name: (Hardware(node, False),) for name, node in cloud_machines().items()}
    known |= {name: (Hardware(node, False),) for name, node in node_types_by_name().items()}
    for name, device in devices_by_name().items():
        node = usual_node(device)
        known[name] = () if node is None else (Hardware(node, True),)
    known |= {also: known[name] for also, name in _ALSO.items()}
    return known | {name: tuple(known[each][0] for each in several) for name, several in _SEVERAL.items()}


@cache
def _lexicon_by_key() -> Mapping[str, tuple[Hardware, ...]]:
    return {_key(name): means for name, means in _lexicon().items()}


@cache
def _catalogue_pattern() -> re.Pattern[str]:
    return _pattern(_lexicon())


def _pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Any of the names, with or without marks between its words, alone or behind or before a count."""
    flexible = [
        r"[\s_.-]*".join(_loose(part) for part in re.split(r"[^a-z0-9]+", name.casefold()) if part)
        for name in sorted(names, key=lambda name: (-len(_key(name)), name))
    ]
    begins, ends = r"(?:(?<=[0-9][x×*])|(?<![A-Za-z0-9.]))", r"s?(?:(?![A-Za-z0-9]|\.[0-9])|(?=[x×*]\s*[0-9]))"
    return re.compile(f"{begins}({'|'.join(flexible) or '(?!)'}){ends}", re.IGNORECASE)


def _loose(part: str) -> str:
    """A word of a name, a mark allowed between three letters or more and the figures behind: ``RTX4090``, ``DGX-1``."""
    return re.sub(r"(?<=[a-z]{3})(?=[0-9])", r"[\\s_-]?", part)


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", name.casefold())


def size_in(named: Named) -> int | None:
    """Return the gigabytes that the name of a device says, None where it says none."""
    size = re.search(r"(?<![a-z0-9])([0-9]{1,3})\s*gb?(?![a-z])", named.words, re.IGNORECASE)
    return int(size[1]) if size is not None and any(each.is_device for each in named.means) else None


def chosen(named: Named, *, memory_gb: int | None, form: BoardForm, words: str) -> Hardware:
    """Return what a name means beside the memory and the form that are said; raises ClusterError where there is no such board,
    or several are."""
    if not named.means:
        raise ClusterError(
            f"the catalogue has the device {named.words} but no node of it",
            given=words,
            allowed=shown(),
            remedy="describe a node of it in a request file: 'cluster.groups' with 'node'",
        )
    fitting = [each for each in named.means if memory_gb is None or has_memory(each.node.device, memory_gb)]
    if len(named.means) > 1:
        if len(fitting) == 1:
            return fitting[0]
        ways = ", ".join(each.node.device.name if each.is_device else each.node.name for each in named.means)
        raise ClusterError("several things have this name", given=words, allowed=ways, remedy=f"say which: {ways}")
    hardware = named.means[0]
    if fitting and _has_form(hardware.node, form):
        return hardware
    sisters = [node for node in _sisters(hardware) if _has_form(node, form)]
    if memory_gb is not None:
        sisters = sorted(
            (node for node in sisters if has_memory(node.device, memory_gb)), key=lambda node: _strange(node, memory_gb)
        )
    if not sisters:
        others = ", ".join(sorted({node.device.name for node in (hardware.node, *_sisters(hardware))}))
        raise ClusterError("there is no such board of this name", given=words, allowed=others, remedy=f"say which: {others}")
    return Hardware(sisters[0], hardware.is_device)


def _strange(node: NodeType, memory_gb: int) -> tuple[int, str]:
    return (abs(_stated_gb(node.device) - memory_gb), node.name)


def _stated_gb(device: Device) -> int:
    size = re.search(r"([0-9]+)gb", device.name)
    return int(size[1]) if size else round(device.memory_bytes / 1e9)


def has_memory(device: Device, gb: int) -> bool:
    """Return True if a size that people say may be this device's: 80 of 84.9e9 bytes, 192 of a B200 with 180 left to use."""
    return 0.92 <= device.memory_bytes / (gb * 1e9) <= 1.1


def _has_form(node: NodeType, form: BoardForm) -> bool:
    return form is BoardForm.UNSAID or (form is BoardForm.PCIE) == is_pcie(node)


def is_pcie(node: NodeType) -> bool:
    """Return True if PCIe joins the devices of the node."""
    return node.intra.name.startswith("pcie")


def _sisters(hardware: Hardware) -> Iterator[NodeType]:
    """Usual nodes of the other boards of the device's name, the largest memory first; of a maker's node type its own."""
    device, maker = hardware.node.device, _first_word(hardware.node.name)
    for other in sorted(devices(), key=lambda each: -each.memory_bytes):
        node = usual_node(other)
        if node is None or other.name == device.name or _chip_of(other) != _chip_of(device):
            continue
        if hardware.is_device or _first_word(node.name) == maker:
            yield node


def _first_word(name: str) -> str:
    return name.split("-")[0]


def _chip_of(device: Device) -> str:
    return re.sub(r"-(?:pcie|nvl)$", "", family_of(device))


def family_of(device: Device) -> str:
    """Return a device's name without its memory and socket: ``a100``, ``a100-pcie``, ``rtx-3090``."""
    return re.sub(r"-(?:sxm[0-9]?-)?[0-9]+gb.*$", "", device.name)


def bridge_of(device: Device) -> Bridge | None:
    """Return the NVLink bridges of a board, None where it has none."""
    return _BRIDGES.get(family_of(device))


def bridged(node: NodeType, bridge: Bridge) -> NodeType:
    """Return the node of boards joined by bridges, whose fabric they are if they join all of them, else PCIe remains it."""
    if node.devices_per_node > bridge.boards:
        return replace(node, intra=replace(node.intra, name=f"{node.intra.name}, bridged {bridge.boards} by {bridge.boards}"))
    return replace(node, intra=Link(name="nvlink-bridge", bytes_per_s=bridge.bytes_per_s, latency_s=6e-7))


def says_generation(node: NodeType, word: str) -> bool:
    """Return True if a word is that of the device's generation: ``Ada``, ``Blackwell``."""
    return generation_of(node.device.calibration).name.split("-")[0] == word


def usual_node(device: Device) -> NodeType | None:
    """Return the node type that goes by one of the device's own names, None where there is none."""
    for name in sorted(name for name, record in devices_by_name().items() if record.name == device.name):
        if name in node_types_by_name():
            return node_type(name)
    return None


def most_of_a_node(device: Device) -> int:
    """Return the most of a device that a node type or a cloud's machine has."""
    every = (*node_types(), *cloud_machines().values())
    return max((node.devices_per_node for node in every if node.device == device), default=0)


def unknown_name(words: str, own: Mapping[str, NodeType]) -> ClusterError:
    """Return the error for words in which there is no name, with the nearest names."""
    given = words[:LONGEST_NAME]
    written = {_key(name): name for name in (*_lexicon(), *own)}
    close = nearest_name(_key(given), written)
    start = "take one of these" if close is None else f"did you mean {written[close]!r}?"
    joined = " Or " if close else ", or "
    remedy = f"{start}{joined}{ADD_YOUR_OWN}, or describe your own node type in a request file: 'cluster.groups'"
    return ClusterError("no device or node type has this name", given=given, allowed=shown(), remedy=remedy)


def shown() -> str:
    """Return the shortest name of every device that has a node, and where the other names are."""
    usual: dict[str, str] = {}
    for name, device in devices_by_name().items():
        if name in node_types_by_name():
            usual[device.name] = min(usual.get(device.name, name), name, key=lambda each: (len(each), each))
    return ", ".join((*sorted(usual.values()), "node types ('meshwright hardware list') and machines of clouds (p5.48xlarge)"))
