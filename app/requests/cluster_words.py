"""A cluster as people say it: ``8xH100``, ``3x8xH100@400Gb``, ``2 nodes, 8x A100 40GB each, HDR InfiniBand``, ``5 of 8 H100``.

    cluster   part (+ part)*
    part      [nodes x] [devices x] name, memory, form, fabric, network     in nearly any order, with commas and brackets
              devices of [size] name, nodes of [devices] name
    network   kind and speed: what a node has in all, or cards x speed
    and once: the memory of every host, "512GB host memory"

Names and figures are taken out of the words first, and then counts; words that are left and not known are an error.
Devices that fill no node are a node of fewer, with its share of the network. Parts with other nodes are groups of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from types import MappingProxyType

from meshwright.app.base.figures import NETWORK_CARD, SIZE, read_quantity
from meshwright.app.requests.cloud_machines import with_kind
from meshwright.app.requests.hardware_words import (
    BoardForm,
    Hardware,
    Named,
    bridge_of,
    bridged,
    chosen,
    has_memory,
    is_pcie,
    most_of_a_node,
    names_in,
    says_generation,
    size_in,
    unknown_name,
)
from meshwright.costmodels.cluster.cluster import UNSTATED_NETWORK, Cluster, NodeGroup, NodeType, part_of_node
from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.hardware import node_types

LONGEST = 400
"""Characters that the words of a cluster may have."""
MOST_OF_ONE_MACHINE = 8
"""Devices that one machine may hold where its usual node has fewer, and boards of several kinds together."""
EXAMPLES = "8xH100, 3x8xH100@400Gb (three nodes of eight), 64xGB200, 5 of 8 H100, 2x dgx-h100, 8xH100 + 8xA100"


def cluster_of_words(text: str, own: Mapping[str, NodeType] = MappingProxyType({})) -> Cluster:
    """Return the cluster that the words say; raises ClusterError with what is allowed and the nearest name.

    ``own`` are a user's node types under their names and their devices'.
    """
    if not text.strip() or len(text) > LONGEST:
        raise ClusterError("these words name no cluster", given=text[:LONGEST], allowed=EXAMPLES)
    words, host_bytes = _host_memory(text.strip())
    sayings = [saying for part in re.split(r"\s*\+\s*", words) for saying in _sayings(part, text, own)]
    groups = tuple(_named(_in_one_machine(sayings)))
    if host_bytes is None:
        return Cluster(groups=groups)
    return Cluster(groups=tuple(replace(group, node=replace(group.node, host_memory_bytes=host_bytes)) for group in groups))


def _host_memory(text: str) -> tuple[str, int | None]:
    """Return the words without the memory of a host, and its bytes; raises ClusterError where it is said twice."""
    said = list(_HOST_MEMORY.finditer(text))
    if len(said) > 1:
        raise ClusterError("the memory of a host is said twice", given=text, allowed="one size for all nodes")
    if not said:
        return text, None
    left = f"{text[: said[0].start()]} {text[said[0].end() :]}".strip()
    return left, int(read_quantity(said[0][1], SIZE, what="host memory"))


def named_hardware(text: str, own: Mapping[str, NodeType] = MappingProxyType({})) -> tuple[NodeType, bool]:
    """Return the node type of a name and whether the name is that of a device, whose usual node it then is.

    ``own`` are a user's node types under their names and their devices'.

    Raises ClusterError with the nearest names where there is none, or more than one.
    """
    said = _sayings(text, text, own)
    if len(said) != 1 or not said[0].counts.is_none or said[0].networks:
        raise unknown_name(text, own)
    return said[0].hardware.node, said[0].hardware.is_device


@dataclass(frozen=True, slots=True)
class _Saying:
    """A part of a cluster, as far as its words say it."""

    hardware: Hardware
    name: str
    words: str
    counts: _Counts
    networks: tuple[_Network, ...]
    has_bridges: bool


@dataclass(slots=True)
class _Counts:
    """The numbers of a part; None is what is not said.

    nodes           nodes
    devices         devices, of each node or in all
    per_node        devices of each node
    left, whole     devices that are left of a node, and how many a whole one has
    is_total        the devices are said to be those of all nodes
    nodes_last      nodes were said behind the devices
    in_brackets     nodes were said in brackets
    are_racks       nodes were said to be racks
    behind_colon    devices were said as Slurm does, h100:8, of each node or in all
    """

    nodes: int | None = None
    devices: int | None = None
    per_node: int | None = None
    left: int | None = None
    whole: int | None = None
    is_total: bool = False
    nodes_last: bool = False
    in_brackets: bool = False
    are_racks: bool = False
    behind_colon: bool = False

    @property
    def is_none(self) -> bool:
        """True if no number was said."""
        return self.nodes is None and self.devices is None and self.per_node is None and self.left is None

    def say(self, what: str, number: int) -> None:
        """Note a number; raises ClusterError for another one of the same thing."""
        known = getattr(self, what)
        if known is not None and known != number:
            raise ClusterError(
                f"two numbers of {_THINGS[what]}",
                given=f"{known} and {number}",
                allowed="one number of nodes, one of devices of each or in all",
                remedy=f"say: {EXAMPLES}",
            )
        if what == "nodes" and known is None:
            self.nodes_last = self.devices is not None
        setattr(self, what, number)

    def of_each(self) -> None:
        """Take the devices for those of each node, as Slurm and Kubernetes mean them ("gpu:h100:8 on 4 nodes")."""
        if self.devices is not None and self.per_node is None and self.nodes is not None:
            self.per_node, self.devices = self.devices, None


_THINGS = {
    "nodes": "nodes",
    "devices": "devices",
    "per_node": "devices of each node",
    "left": "devices that are left",
    "whole": "devices of a whole node",
}


@dataclass(frozen=True, slots=True)
class _Network:
    """A network that is said: its kind, the rate of a generation's card, the speed in all or of each device; None is unsaid."""

    kind: str | None = None
    card_bytes_per_s: float | None = None
    bytes_per_s: float | None = None
    is_per_device: bool = False
    words: str = ""


# Words into tokens. Each token is a letter; a number is N, the values stand beside it.

_NUMBERS = (
    *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"),
)
_SPOKEN = {
    **{word: number for number, word in enumerate(_NUMBERS, start=1)},
    "a": 1,
    "an": 1,
    "single": 1,
    "dual": 2,
    "quad": 4,
}
_CJK = {
    "，": ",",
    "、": ",",
    "（": "(",
    "）": ")",
    "：": ":",
    "每台": " each ",
    "每节点": " each ",
    "每个节点": " each ",
    "每机": " each ",
    "个节点": " nodes ",
    "节点": " nodes ",
    "台": " nodes ",
    "机": " nodes ",
    "卡": " gpus ",
    "张": " gpus ",
    "块": " gpus ",
    "双": " dual ",
    "两": " two ",
    "单": " single ",
    "共": " total ",
    "服务器": " ",
}
_NODE = r"(?:nodes?|hosts?|servers?|machines?|box(?:es)?|racks?|instances?|vms?|workstations?|desktops?|pcs?)"
_DEVICE = r"(?:gpus?|tpus?|npus?|devices?|accelerators?|cards?|boards?|chips?|hpus?|superchips?|dies)"
_NOTHING = (
    r"nvidia|amd|huawei|intel|google|aws|ec2|amazon|azure|gcp|microsoft|oracle|oci|lambda|coreweave|habana|tesla|"
    r"geforce|instinct|standard|tensor|core|cores|generation|graphics|edition|gpu|gpus|vram|memory|mem|ram|hbm|hbm2|"
    r"hbm2e|hbm3|hbm3e|gddr6|gddr6x|gddr7|free|available|idle|spare|unused|the|only|just|my|our|with|using|running|"
    r"has|have|having|cluster|system|setup|connected|interconnect|interconnected|fabric|full|fully|and|or|training|"
    r"inference|for|rig|supercluster|cloud|as|type|containing|consisting|equipped|pair|by|linked|joined|through|via"
)
_TOKEN = re.compile(
    rf"\s*(?:(?P<E>(?:each|apiece|(?:per|a|every)\s+{_NODE}|/\s*{_NODE})(?![a-z]))"
    r"|(?P<G>⟦)|(?P<X>[x×*](?![a-z]))|(?P<C>:)|(?P<B>\()|(?P<b>\))|(?P<S>[,;|/]|-)"
    r"|(?P<O>(?:total|altogether|overall)(?![a-z]))"
    r"|(?P<P>(?:out\s+)?of(?![a-z]))"
    r"|(?P<T>(?:in|across|over|on|among|between|spread|split)(?![a-z]))"
    r"|(?P<W>ways?(?![a-z]))"
    rf"|(?P<H>{_NODE}(?![a-z]))"
    rf"|(?P<D>{_DEVICE}(?![a-z]))"
    r"|(?P<N>[0-9]{1,7}(?![0-9]))"
    r"|(?P<Q>[^\s,;()|:/⟦0-9][^\s,;()|:/⟦]*|[0-9]+))",
    re.IGNORECASE,
)
"""G a name, X times, C a colon, B and b brackets, S a mark, E of each node, O in all, P of, T across, W ways, H nodes,
D devices, N a number, Q any other word."""


@dataclass(frozen=True, slots=True)
class _Token:
    letter: str
    words: str
    number: int = 0


def _tokens(words: str, names: list[Named]) -> list[_Token]:
    """Return the words as tokens, without those that say nothing; a name's number is 1 if it is that of a device."""
    tokens, ahead = [], iter(names)
    for match in _TOKEN.finditer(words):
        said, letter = match[0].strip(), str(match.lastgroup)
        word = said.casefold()
        if letter == "Q" and word in _SPOKEN:
            tokens.append(_Token("N", said, _SPOKEN[word]))
        elif letter == "N":
            tokens.append(_Token(letter, said, int(said)))
        elif letter == "G":
            tokens.append(_Token(letter, said, int(any(each.is_device for each in next(ahead).means))))
        elif letter != "Q" or re.fullmatch(_NOTHING, word) is None:
            tokens.append(_Token(letter, said))
    # "a" is a number before a name or what is counted, and nothing elsewhere: "64 of a GB200", "a single A100".
    last = len(tokens) - 1
    return [
        token
        for place, token in enumerate(tokens)
        if token.words.casefold() not in ("a", "an")
        or (place < last and tokens[place + 1].letter in "GDH" and (not place or tokens[place - 1].letter != "P"))
    ]


# Figures beside names: memory, form, fabric, network.

_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("infiniband", "ib"), "infiniband"),
    **dict.fromkeys(("roce", "rocev2", "roce v2"), "roce"),
    **dict.fromkeys(("ethernet", "eth", "gbe", "tcp", "ena"), "ethernet"),
    "efa": "efa",
    "slingshot": "slingshot",
    **dict.fromkeys(("omni-path", "omnipath", "omni path", "opa"), "omni-path"),
}
_CARD_GBIT_PER_S = {
    **dict.fromkeys(("fdr", "fdr56"), 56),
    **dict.fromkeys(("edr", "edr100", "hdr100"), 100),
    **dict.fromkeys(("hdr", "hdr200", "ndr200"), 200),
    **dict.fromkeys(("ndr", "ndr400"), 400),
    **dict.fromkeys(("xdr", "xdr800"), 800),
}
"""Generations of InfiniBand, four lanes (InfiniBand Trade Association, roadmap)."""
_NETWORK_GBIT_PER_S = (10, 25, 50, 56, 100, 200, 400, 800, 1600, 3200)
"""Speeds of networks that are said without a unit of bits: "400G"."""
_KIND_WORDS = (
    r"(?:infiniband|ib|roce(?:[\s-]?v2)?|ethernet|eth|tcp|ena|efa(?:v[123])?|slingshot(?:-?11)?|omni[\s-]?path|opa|fdr(?:[\s-]?56)?|edr(?:[\s-]?100)?|"
    r"hdr(?:[\s-]?[12]00)?|ndr(?:[\s-]?[24]00)?|xdr(?:[\s-]?800)?|rdma|network(?:ing|s)?|nics?|hcas?|connectx-?[5-9]|cx-?[5-9]|mellanox)(?![a-z0-9])"
)
_SPEED_WORDS = (
    r"(?:[0-9]{1,3}\s*[x×*]\s*)?[0-9]+(?:\.[0-9]+)?\s*"
    r"(?:gbe|[gt]b(?:it)?/s(?:ec)?|[gt]bit/s|[gt]bps|[gt]bits?|gigabit|[gt]b|g)(?![a-z0-9/])"
)
_SURE_SPEED = (
    r"(?:[0-9]{1,3}\s*[x×*]\s*)?[0-9]+(?:\.[0-9]+)?\s*(?:gbe|[gt]b(?:it)?/s(?:ec)?|[gt]bps|[gt]bits?|gigabit)(?![a-z0-9/])"
)
_NETWORK = re.compile(
    r"(?:\b(?:over|via|with|and|on)\s+)?(?<![a-z0-9])(?:"
    rf"(?P<before>{_KIND_WORDS}(?:[\s:/-]*{_KIND_WORDS})*)(?:[\s:]*(?P<speed>{_SPEED_WORDS})(?:\s*{_KIND_WORDS})*)?"
    rf"|(?P<first>{_SPEED_WORDS})[\s-]*(?P<after>{_KIND_WORDS}(?:[\s/-]*{_KIND_WORDS})*)"
    rf"|(?P<sure>{_SURE_SPEED})"
    r")(?P<each>\s*(?:per|a|each|/)\s*(?:gpu|device|card|accelerator|chip)\b)?(?:\s*(?:per|a|each|/)\s*(?:node|server|host|machine)\b)?",
    re.IGNORECASE,
)
_MEMORY = re.compile(r"(?:(?<=[0-9][x×*])|(?<![a-z0-9.]))([0-9]{1,4})\s*(?:gib|gb|g)(?![a-z0-9/])", re.IGNORECASE)
_GLUED_MEMORY = re.compile(r"⟦[\s]*-\s*([0-9]{1,3})(?![0-9a-z])", re.IGNORECASE)
_CARDS = re.compile(r"(?P<cards>[0-9]{1,4})\s*[x×*]\s*(?P<speed>.+)")
_BARE_CARDS = re.compile(r"(?<![a-z0-9.])([0-9]{1,3})\s*[x×*]\s*([0-9]{2,4})\s*g(?:b)?(?![a-z0-9/])", re.IGNORECASE)
_NVLINK = re.compile(
    r"(?P<no>\b(?:no|without|w/o|non)[\s-]*)?\b(?:nvlink|nv-link|nvswitch)(?:-?[1-6](?:\.0)?(?![0-9a-z])|\s+[1-6]\.0)?"
    r"(?:[\s-]*(?:bridges?|bridged|pairs?|nvswitch))?(?![a-z])|(?P<without>\b(?:no|without)\s+bridges?\b)|\b(?:with\s+)?bridges?\b",
    re.IGNORECASE,
)
_HOST_MEMORY = re.compile(
    r"[,;]?\s{0,8}(?:\b(?:with|and)\s{1,8})?(?<![a-z0-9.])([0-9]{1,7}(?:\.[0-9]{1,3})?\s{0,8}[gt]i?b)\s{0,8}(?:of\s{1,8})?"
    r"(?:host|system|cpu)[\s-](?:memory|ram)(?:\s{1,8}(?:per|a|each)(?:\s{1,8}(?:node|server|host|machine))?)?(?![a-z])",
    re.IGNORECASE,
)
_PCIE = re.compile(
    r"\bpci-?e(?:xpress)?(?![a-z])(?:[\s-]*(?:gen[\s-]*[3-6](?:\.0)?|[3-6]\.0)(?![0-9]))?(?:\s*x(?:4|8|16)(?![0-9a-z]))?"
    r"|\bgen[3-6]\s+pcie\b",
    re.IGNORECASE,
)
_SXM = re.compile(r"\b(?:sxm[2-6]?|oam|hgx|baseboard)(?![a-z0-9])", re.IGNORECASE)
_GRES = re.compile(r"^\s*(?:--?(?:gres|gpus(?:-per-node)?)[=\s]\s*)?(?:(?:nvidia|amd)\.com/)?gpu\s*:", re.IGNORECASE)


def _sayings(part: str, text: str, own: Mapping[str, NodeType]) -> list[_Saying]:
    """Return the sayings of words between plus signs: clauses with names of their own, each with the clauses around it."""
    words, at, network = re.sub(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))", "", part).partition("@")
    words, gres = _GRES.subn("", words.replace("⟦", " "))
    words = re.sub(r"\bpair\s+of\b", "2", words, flags=re.IGNORECASE)
    for sign, plain in _CJK.items():
        words = words.replace(sign, plain)
    names = names_in(words, own)
    if not names:
        raise _no_name(words, text, own)
    sayings = [_saying(clauses, of, network if at else None, text) for clauses, of in _by_name(words, names)]
    if gres:
        sayings[0].counts.of_each()
    return sayings


def _no_name(words: str, text: str, own: Mapping[str, NodeType]) -> ClusterError:
    """Return the error for words without a name: with the nearest name to what is neither a count nor nothing."""
    left = _PCIE.sub(" ", _MEMORY.sub(" ", _NETWORK.sub(" ", words)))
    left = re.sub(r"^\s*(?:[0-9]{1,7}\s*[x×*]\s*|[0-9]{1,7}\s+)+", " ", left, flags=re.IGNORECASE)
    left = re.sub(rf"\b(?:{_NODE}|{_DEVICE}|of|each|{'|'.join(_NUMBERS)}|{_NOTHING})(?![a-z])", " ", left, flags=re.I)
    left = re.sub(r"(?<![a-z0-9.])[0-9]+\s*[x×*]\s*|\s+", " ", left, flags=re.I).strip(" ,;:()x×*-")
    if not re.search("[A-Za-z]", left):
        return ClusterError("these words name no cluster", given=text, allowed=EXAMPLES, remedy=f"say a device: {EXAMPLES}")
    return unknown_name(left, own)


def _by_name(words: str, names: list[Named]) -> list[tuple[str, list[Named]]]:
    """Return words cut at commas and "and" before a clause with a name of its own, names left out of them."""
    cuts = [0]
    marked, last = "", 0
    places: list[int] = []
    for name in names:
        marked += words[last : name.start]
        places.append(len(marked))
        marked += "⟦ "
        last = name.end
    marked += words[last:]
    for before, here in pairwise(places):
        between = marked[before + 1 : here]
        marks = list(re.finditer(r",|;|\s+and\s+|\s+plus\s+|\s+&\s+", between))
        # Brackets and names side by side are one thing said twice: "DGX H100 (8x H100)".
        if marks and between.count("(") <= between.count(")"):
            cuts.append(before + 1 + marks[-1].end())
    cuts.append(len(marked))
    found = []
    for start, end in pairwise(cuts):
        inside = [name for name, place in zip(names, places, strict=True) if start <= place < end]
        found.append((marked[start:end], inside))
    return found


def _saying(words: str, names: list[Named], network: str | None, text: str) -> _Saying:
    """Read the words of one thing: first its figures, then its counts."""
    networks: list[_Network] = []
    memory: set[int] = set()
    devices = {hardware.node.device for name in names for hardware in name.means}

    def take_network(match: re.Match[str]) -> str:
        said = match["speed"] or match["first"] or match["sure"]
        if said is not None and (size := _as_memory(said)) is not None:
            memory.add(size)
            said = None
        kinds = f"{match['before'] or ''} {match['after'] or ''}"
        if said is not None or kinds.strip():
            networks.append(_network(kinds, said, is_per_device=bool(match["each"])))
        return " , "

    def take_cards(match: re.Match[str]) -> str:
        if any(has_memory(device, int(match[2])) for device in devices):
            return match[0]
        networks.append(_network("", match[0], is_per_device=False))
        return " , "

    def take_memory(match: re.Match[str]) -> str:
        memory.add(int(match[1]))
        return "⟦ " if match[0].startswith("⟦") else " "

    left = _NETWORK.sub(take_network, _GLUED_MEMORY.sub(take_memory, words))
    left = _MEMORY.sub(take_memory, _BARE_CARDS.sub(take_cards, left))
    denials = [bool(match["no"] or match["without"]) for match in _NVLINK.finditer(left)]
    left = _NVLINK.sub(" ", left)
    forms = {form for pattern, form in ((_PCIE, BoardForm.PCIE), (_SXM, BoardForm.SXM)) if pattern.search(left)}
    left = re.sub(r"\(\s*[,;]?\s*\)", " ", _SXM.sub(" ", _PCIE.sub(" ", left)))
    left = re.sub(r"(?<=[0-9])\s*[x×*](?=[^\s0-9])", " x ", re.sub(r"(?<=[x×*])\s*\(|_", " ", left))
    hardware = _one(names, memory, forms, text)
    if network is not None:
        networks.append(_network_behind_at(network.strip()))
    return _Saying(
        hardware=hardware,
        name=names[0].words,
        words=text,
        counts=_counts(_tokens(re.sub(r"(?<=[a-z0-9⟦])-(?=[a-z0-9⟦])", " ", left, flags=re.IGNORECASE), names), hardware, text),
        networks=tuple(networks),
        has_bridges=_bridges_said(hardware, denials, text),
    )


def _as_memory(said: str) -> int | None:
    """Return the size of memory that a figure beside a network's word is instead: no network goes at such a speed."""
    found = re.fullmatch(r"([0-9]{1,4})\s*(?:g|gb)", said, re.IGNORECASE)
    return None if found is None or int(found[1]) in _NETWORK_GBIT_PER_S else int(found[1])


def _one(names: list[Named], memory: set[int], forms: set[BoardForm], text: str) -> Hardware:
    """Return the one thing that the names of a clause mean; names of one device are one thing said twice."""
    memory |= {size for name in names if (size := size_in(name)) is not None}
    if len(memory) > 1 or len(forms) > 1:
        said = ", ".join((*(f"{size}GB" for size in sorted(memory)), *sorted(form.value for form in forms)))
        raise ClusterError(
            "these words say two things of one device", given=said, allowed="one size, one form", remedy=EXAMPLES
        )
    size, form = (next(iter(memory), None), next(iter(forms), BoardForm.UNSAID))
    found = [chosen(name, memory_gb=size, form=form, words=text) for name in names]
    if any(each.node.device.name != found[0].node.device.name for each in found):
        raise ClusterError(
            "two devices in one part", given=text, allowed="one device a part", remedy="join parts by '+': 8xH100 + 8xA100"
        )
    # A node type says more than its device.
    return next((each for each in found if not each.is_device), found[0])


def _bridges_said(hardware: Hardware, denials: list[bool], text: str) -> bool:
    """Return whether PCIe boards are bridged, where NVLink is said or denied; raises ClusterError if that can not be."""
    pcie = is_pcie(hardware.node)
    name = hardware.node.device.name
    if len(set(denials)) > 1 or (True in denials and not pcie and hardware.node.devices_per_node > 1):
        raise ClusterError(f"NVLink joins the {name}", given=text, allowed="the name of a PCIe board, as 'H100 PCIe'")
    if False not in denials or not pcie:
        return False
    if bridge_of(hardware.node.device) is None:
        raise ClusterError(f"the {name} has no NVLink", given=text, allowed="PCIe", remedy="leave 'NVLink' out")
    return True


# Networks.


def _network(kinds: str, speed: str | None, *, is_per_device: bool) -> _Network:
    words = re.sub(r"\b([fehnx]dr)[\s-]+([0-9]+)", r"\1\2", kinds.casefold().replace("rocev2", "roce")).replace("-", " ")
    kind = next((known for word, known in _KINDS.items() if re.search(rf"\b{word}(?:v[123])?\b", words)), None)
    generation = next((word for word in re.findall(r"[a-z]+[0-9]*", words) if word in _CARD_GBIT_PER_S), None)
    if generation is not None and kind is None:
        kind = "infiniband"
    if speed is not None and kind is None and re.search("gbe|gigabit", speed, re.IGNORECASE):
        kind = "ethernet"
    return _Network(
        kind=kind,
        card_bytes_per_s=None if generation is None else _CARD_GBIT_PER_S[generation] * 1e9 / 8,
        bytes_per_s=None if speed is None else _speed(_in_bits(speed)),
        is_per_device=is_per_device,
        words=f"{kinds} {speed or ''}".strip(),
    )


def _in_bits(speed: str) -> str:
    """Return a speed that people say of networks in the units of NETWORK_CARD: ``200gb`` and ``100GbE`` are bits."""
    if re.search(r"gb/s|gb/sec", speed, re.IGNORECASE) and not re.search(r"G[bB]/s", speed):
        return speed
    speed = re.sub(r"gbit/s(?:ec)?|gbps|gbits?|gbe|gigabit", "Gb", speed, flags=re.IGNORECASE)
    speed = re.sub(r"tbit/s(?:ec)?|tbps|tbits?|tb/s", "Tb", speed, flags=re.IGNORECASE)
    return re.sub(r"(?<=[0-9])(\s*)(?:gb|g)$", r"\1Gb", speed, flags=re.IGNORECASE)


def _network_behind_at(words: str) -> _Network:
    """Return the network behind '@': a speed, or cards and the speed of each, with its kind if it is said."""
    kinds = " ".join(re.findall(_KIND_WORDS, words, re.IGNORECASE))
    speed = re.sub(_KIND_WORDS, " ", words, flags=re.IGNORECASE).strip()
    told = _network(kinds, None, is_per_device=False)
    return replace(told, bytes_per_s=_speed(speed) if speed or not kinds else None)


def _speed(words: str) -> float:
    cards = _CARDS.fullmatch(words)
    speed = read_quantity(cards["speed"] if cards else words, NETWORK_CARD, what="the network after '@'")
    bytes_per_s = speed * (int(cards["cards"]) if cards else 1)
    if not bytes_per_s:
        raise ClusterError("a network of no speed", given=words, allowed=NETWORK_CARD.example)
    return bytes_per_s


def _with_networks(node: NodeType, networks: tuple[_Network, ...]) -> NodeType:
    """Return the node with what is said of its network."""
    speeds = {(each.bytes_per_s, each.is_per_device) for each in networks if each.bytes_per_s is not None}
    kinds = {each.kind for each in networks if each.kind is not None}
    if len(speeds) > 1 or len(kinds) > 1:
        said = ", ".join(each.words for each in networks)
        raise ClusterError("two networks are said of one node", given=said, allowed="one speed", remedy="say it once: @400Gb")
    for kind in kinds:
        node = with_kind(node, kind)
    for each in networks:
        if each.card_bytes_per_s is not None and not speeds:
            cards = re.match(r"([0-9]+)x", node.inter.name)
            speeds = {(each.card_bytes_per_s * (int(cards[1]) if cards else 1), False)}
    for bytes_per_s, is_per_device in speeds:
        rate = bytes_per_s * (node.devices_per_node if is_per_device else 1)
        node = replace(node, inter=replace(node.inter, name=f"{rate * 8 / 1e9:g} Gb/s", bytes_per_s=rate))
    return node


# Counts: phrases of tokens by their letters, the first that fits at a place.

_PHRASES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (what, re.compile(letters))
    for what, letters in (
        ("left", r"(N)D?P(?:(N)X?)?GD?"),
        ("nodes of", r"(N)H[XPC]+(?=N)"),
        ("nodes", r"(N)H"),
        ("each", r"(N)X?[DGW]*E"),
        ("nodes, each", r"(N)X?(N)(?!H)X?[DGW]*E?"),
        ("each, nodes", r"(N)X?GD*X(N)(?![DE])H?"),
        ("named nodes", r"(N)GD*H"),
        ("of a node", r"(N)X?[DW]+G?H|(N)XGD*H"),
        ("named", r"(N)X?G[DW]*"),
        ("devices", r"(N)X?[DW]+G?"),
        ("named", r"GD*(?:S?X|C)(N)(?!H)[DW]*"),
        ("named", r"GD*(N)X(?![NG])"),
        ("nodes", r"HX(N)"),
        ("each of", r"E(?=P?NH)"),
        ("each next", r"E"),
        ("total", r"(?<!T)T+(?=NH)|O"),
        ("node", r"H"),
        ("", r"X(?=NH)|[GDSCPTBb]"),
    )
)


def _counts(tokens: list[_Token], hardware: Hardware, text: str) -> _Counts:
    """Read the numbers of a part; raises ClusterError for words and numbers that say nothing known."""
    counts = _Counts(are_racks=any(token.letter == "H" and token.words.casefold().startswith("rack") for token in tokens))
    letters = "".join(token.letter for token in tokens)
    place, is_each_next, unknown = 0, False, []
    while place < len(tokens):
        what, found = next(
            ((what, found) for what, pattern in _PHRASES if (found := pattern.match(letters, place)) is not None), ("", None)
        )
        if found is None:
            if not (tokens[place].letter == "Q" and says_generation(hardware.node, tokens[place].words.casefold())):
                unknown.append(tokens[place].words)
            place += 1
            continue
        numbers = [tokens[found.start(group)].number for group in range(1, found.re.groups + 1) if found[group]]
        if 0 in numbers:
            raise ClusterError("a cluster of no devices", given=text, allowed="1 or more of each", remedy=f"say: {EXAMPLES}")
        if what == "each next":
            is_each_next = True
        elif what:
            depth = letters.count("B", 0, place) - letters.count("b", 0, place)
            counts.in_brackets |= depth > 0 and what == "nodes"
            counts.behind_colon |= what == "named" and "C" in letters[place : found.end()]
            last = tokens[found.end() - 1].words.casefold()
            name = letters.find("G", place, found.end())
            is_device = hardware.is_device if name < 0 else bool(tokens[name].number)
            says_devices = bool({"D", "W"} & set(letters[place : found.end()]))
            if what == "named" and not is_device and not says_devices:
                _require_one_meaning(numbers[0], hardware.node, text)
            is_device |= says_devices and what != "named nodes"
            _note(counts, what, numbers, is_device=is_device, is_each=is_each_next, is_plural=last.endswith("s"))
            is_each_next = what == "nodes of" or (is_each_next and not numbers)
        place = found.end()
    if unknown:
        raise ClusterError(
            "words of this cluster that are not understood",
            given=" ".join(unknown)[:LONGEST],
            allowed=EXAMPLES,
            remedy="leave them out, or say another name of 'meshwright hardware list'; a card that is not among them: "
            "'meshwright hardware add'",
        )
    return counts


def _require_one_meaning(number: int, node: NodeType, text: str) -> None:
    """Refuse as many as a node has devices before words for a node type, as in "8x HGX H100": nodes or devices may be meant.

    Names of machines (a DGX, a cloud's), and of node types as the catalogue writes them, are those of nodes.
    """
    per_node = node.devices_per_node
    is_machine = "dgx" in text.casefold() or node.name not in _catalogue_nodes() or node.name in text
    if number == per_node > 1 and not is_machine:
        raise ClusterError(
            "nodes, or devices?",
            given=text,
            allowed=f"nodes of {per_node} devices, or devices",
            remedy=f"say {number} nodes of {node.name} ({number * per_node} devices), or {number} {node.device.name}",
        )


@cache
def _catalogue_nodes() -> frozenset[str]:
    return frozenset(node.name for node in node_types())


def _note(counts: _Counts, what: str, numbers: list[int], *, is_device: bool, is_each: bool, is_plural: bool) -> None:
    """Note what a phrase says, of a device or of a node type. ``is_each``: the number that comes is that of each node."""
    devices = "per_node" if is_each else "devices"
    match what:
        case "left":
            counts.say("left", numbers[0])
            if len(numbers) == 2:
                counts.say("whole", numbers[1])
        case "nodes of" | "nodes":
            counts.say("nodes", numbers[0])
        case "each":
            counts.say("per_node", numbers[0])
        case "nodes, each":
            counts.say("nodes", numbers[0])
            counts.say("per_node", numbers[1])
        case "each, nodes":
            counts.say("per_node", numbers[0])
            counts.say("nodes", numbers[1])
        case "named nodes" if is_plural or not is_device or numbers[0] == 1:
            counts.say("nodes", numbers[0])
        case "of a node" | "named nodes" if is_device or what == "named nodes":
            counts.say("per_node", numbers[0])
            if not is_plural:
                counts.say("nodes", 1)
        case "named" | "of a node":
            counts.say(devices if is_device else "nodes", numbers[0])
        case "devices":
            counts.say(devices, numbers[0])
        case "each of" if counts.devices is not None:
            counts.per_node, counts.devices = counts.devices, None
        case "total":
            counts.is_total = True
        case "node" if is_device and not is_plural and counts.nodes is None:
            counts.say("nodes", 1)


# Counts into nodes.


def _groups(saying: _Saying) -> list[tuple[NodeType, int]]:
    """Node types and numbers of nodes of one part."""
    groups = _counted(saying)
    if saying.has_bridges and (bridge := bridge_of(saying.hardware.node.device)) is not None:
        groups = [(bridged(node, bridge), count) for node, count in groups]
    return [(_with_networks(node, saying.networks), count) for node, count in groups]


def _counted(saying: _Saying) -> list[tuple[NodeType, int]]:
    node, is_device, counts = saying.hardware.node, saying.hardware.is_device, saying.counts
    nodes, devices, per_node = counts.nodes, counts.devices, counts.per_node
    if counts.left is not None:
        if counts.whole is not None or not is_device or counts.left <= node.devices_per_node:
            return [(_left_of(saying, counts.left), 1)]
        devices = counts.left
    if per_node is None and devices is not None and nodes is not None:
        per_node, devices = _of_each(saying, nodes, devices), None
    if per_node is not None:
        if devices is not None and (devices % per_node or (nodes is not None and nodes * per_node != devices)):
            raise ClusterError(
                "these numbers of devices do not agree",
                given=f"{devices} in all, {per_node} of each of {nodes or 'some'} nodes",
                allowed="nodes x devices of each, or devices in all",
                remedy=f"say: {devices // per_node or 1}x{per_node}x{saying.name}",
            )
        nodes = nodes or (1 if devices is None else devices // per_node)
        return [(_of_so_many(saying, per_node, nodes), nodes)]
    if devices is not None:
        if node.devices_per_node < devices <= _most_of_a_machine(saying):
            return [(_of_so_many(saying, devices, 1), 1)]
        whole, rest = divmod(devices, node.devices_per_node)
        return [(node, whole)] * bool(whole) + [(part_of_node(node, rest), 1)] * bool(rest)
    if nodes is None and is_device:
        return [(part_of_node(node, 1), 1)]
    if is_device and node.host_devices != node.devices_per_node and not counts.are_racks:
        raise ClusterError(
            "hosts of a rack, or racks?",
            given=saying.words,
            allowed=f"racks of {node.devices_per_node}, or devices: {node.host_devices} of a host",
            remedy=f"say {nodes} racks of {saying.name}, or {(nodes or 1) * node.host_devices}x{saying.name}",
        )
    return [(node, nodes or 1)]


def _of_so_many(saying: _Saying, devices: int, nodes: int) -> NodeType:
    """Return the node with so many devices: fewer than the catalogue's have their share of the network."""
    node = saying.hardware.node
    if devices <= node.devices_per_node:
        return part_of_node(node, devices)
    if devices <= _most_of_a_machine(saying):
        return replace(node, name=f"{saying.hardware.node.device.name}-{devices}x", devices_per_node=devices)
    raise _too_many(saying, nodes, devices)


def _most_of_a_machine(saying: _Saying) -> int:
    """Return how many devices of a name a machine may hold where its usual node has fewer: PCIe boards, and those of which
    another node type has more."""
    if not saying.hardware.is_device:
        return 0
    node = saying.hardware.node
    return MOST_OF_ONE_MACHINE if is_pcie(node) else min(MOST_OF_ONE_MACHINE, most_of_a_node(node.device))


def _of_each(saying: _Saying, nodes: int, devices: int) -> int:
    """Return the devices of each node where some and nodes are said, but not whether they are those of each or of all.

    More than a node holds, or said to be in all, are those of all. Said behind the nodes they are those of each ("2 nodes,
    4 H100"), and so is a whole node's number before them ("8x A100, 4 nodes"). Brackets explain what stands before them
    ("4 H100 (2 nodes)").
    """
    counts, whole = saying.counts, saying.hardware.node.devices_per_node
    if nodes == 1:
        return devices
    if devices <= whole and (not counts.is_total or counts.behind_colon):
        if counts.is_total:
            raise _each_or_all(saying, nodes, devices)
        if not counts.nodes_last or (devices == whole and not counts.in_brackets):
            return devices
        if devices == whole or not counts.in_brackets:
            raise _each_or_all(saying, nodes, devices)
    if devices % nodes:
        raise ClusterError(
            "equal nodes can not have so many devices",
            given=f"{devices} on {nodes} nodes",
            allowed=f"a multiple of {nodes}",
            remedy="say the nodes that differ one by one: 8xH100 + 4xH100",
        )
    return devices // nodes


def _each_or_all(saying: _Saying, nodes: int, devices: int) -> ClusterError:
    return ClusterError(
        "devices of each node, or of all?",
        given=saying.words,
        allowed=EXAMPLES,
        remedy=f"say {nodes}x{devices}x{saying.name}, or {devices} {saying.name} across {nodes} nodes",
    )


def _left_of(saying: _Saying, left: int) -> NodeType:
    """Return the node with the devices that are left of it."""
    node, whole = saying.hardware.node, saying.counts.whole
    if whole is not None and whole != node.devices_per_node:
        raise ClusterError(
            f"a {node.name} has another number of devices",
            given=whole,
            allowed=str(node.devices_per_node),
            remedy=f"say: {left} of {node.devices_per_node} {saying.name}",
        )
    return _of_so_many(saying, left, 1)


def _too_many(saying: _Saying, nodes: int, devices: int) -> ClusterError:
    node = saying.hardware.node
    return ClusterError(
        f"a {node.name} has fewer devices",
        given=devices,
        allowed=f"1 to {node.devices_per_node} of a node",
        remedy=f"say how many in all: {nodes * devices}x{saying.name}",
    )


_BOARDS_OF_PEOPLE = ("rtx-", "titan-", "quadro-")


def _in_one_machine(sayings: list[_Saying]) -> list[tuple[NodeType, int]]:
    """Node types and numbers of nodes of all parts.

    Boards of several kinds that people put into one machine ("1x RTX 3090 + 1x RTX 4090") are groups joined by its PCIe, unless
    nodes or a network are said.
    """
    groups = [group for saying in sayings for group in _groups(saying)]
    is_one = len(groups) > 1 and sum(node.devices_per_node * count for node, count in groups) <= MOST_OF_ONE_MACHINE
    for saying in sayings:
        counts = saying.counts
        is_one &= saying.hardware.node.device.name.startswith(_BOARDS_OF_PEOPLE) and saying.hardware.is_device
        is_one &= not saying.networks and counts.nodes is None and counts.per_node is None and counts.left is None
    if not is_one:
        return groups
    return [(_joined_by_pcie(node), count) for node, count in groups]


def _joined_by_pcie(node: NodeType) -> NodeType:
    link = replace(node.intra, name="pcie of one host", bytes_per_s=node.intra.bytes_per_s * node.devices_per_node)
    return replace(node, inter=link, network=UNSTATED_NETWORK)


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
