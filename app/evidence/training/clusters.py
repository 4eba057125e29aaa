"""From a run's GPU and bandwidth columns to a cluster of the hardware catalogue."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.app.evidence.training.rows import Run
from meshwright.costmodels.cluster.cluster import Cluster, Link, NodeGroup, NodeType, part_of_node
from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.hardware import node_type, node_types

_NODE_OF_GPU: Mapping[str, str] = {
    "Ascend-910B": "ascend-910b-host",
    "A100-SXM-80GB": "dgx-a100",
    "A100-40GB": "dgx-a100-40gb",
    "H100-SXM-80GB": "dgx-h100",
    "H100-96GB-HBM2e-500W": "hgx-h100-96gb-hbm2e",
    "H200": "dgx-h200",
    "B200": "dgx-b200",
    "B300": "dgx-b300",
    "GB200": "gb200-nvl72",
    "GB300": "gb300-nvl72",
    "V100-32GB": "v100-4x-opa",
    "V100-16GB": "v100-16gb-4x-opa",
}
"""Node type of each name that the table's GPUs have; other names are looked up in the hardware catalogue."""

_KIND_OF_WORD: Mapping[str, str] = {
    "ib": "infiniband",
    "infiniband": "infiniband",
    "roce": "roce",
    "ethernet": "ethernet",
    "efa": "efa",
    "omni": "omni-path",
    "slingshot": "slingshot",
}
"""Kind of network of each word that the table's speeds between nodes have."""

LARGEST_HOST = 16
"""Devices of the largest host of the hardware catalogue: nodes with more are racks of hosts."""

_SPEED = re.compile(r"(?<!\d)(?:(?P<times>\d+) ?x ?)?(?P<figure>\d+(?:\.\d+)?) ?\(?G(?P<unit>b|B)(?:/s|ps)?\b", re.ASCII)
_PER_GPU = re.compile(r"per GPU", re.IGNORECASE)


def cluster_of(run: Run) -> Cluster:
    """The run's cluster: whole nodes, or a part of one with its share of the network.

    Raises NotPredictedError for a GPU that the catalogue does not have, or a number that is not given.
    """
    if run.n_gpus is None:
        raise NotPredictedError("the row gives no n_gpus")
    node = _node(run.gpu)
    whole = _devices_per_node(run, node)
    if whole != node.devices_per_node:
        node = part_of_node(node, whole)
    node = _with_stated_speeds(run, node)
    if run.n_gpus < whole:
        return Cluster((NodeGroup("nodes", part_of_node(node, run.n_gpus), 1),))
    part = part_of_each_node(run.n_gpus, whole)
    if part is None:
        raise NotPredictedError(f"{run.n_gpus} GPUs are not whole nodes of {whole}")
    return Cluster((NodeGroup("nodes", part_of_node(node, part), run.n_gpus // part),))


def part_of_each_node(n_gpus: int, whole: int) -> int | None:
    """GPUs of each node where all have the same number. Jobs take whole hosts, but at least half of a rack: 64 of 72. None
    where no such number divides them."""
    least = whole if whole <= LARGEST_HOST else -(-whole // 2)
    return next((part for part in range(whole, least - 1, -1) if n_gpus % part == 0), None)


def cluster_assumption(run: Run) -> str | None:
    """Return the assumption of a cluster that is no whole nodes, in words; None where it is."""
    node = _node(run.gpu)
    whole = _devices_per_node(run, node)
    if run.n_gpus is None or run.n_gpus <= whole or run.n_gpus % whole == 0:
        return None
    return f"{part_of_each_node(run.n_gpus, whole)} devices of each node of {whole}"


def _devices_per_node(run: Run, node: NodeType) -> int:
    """Devices that the node's own links join. Rows count those of one host; hosts of a rack are joined alike."""
    stated = run.gpus_per_node or node.devices_per_node
    return node.devices_per_node if node.devices_per_node > LARGEST_HOST >= stated else stated


def _node(gpu: str) -> NodeType:
    if not gpu:
        raise NotPredictedError("the row does not say which GPU")
    if gpu in _NODE_OF_GPU:
        return node_type(_NODE_OF_GPU[gpu])
    try:
        return node_type(gpu.lower())
    except ClusterError:
        pass
    for node in node_types():
        if node.device.name == gpu.lower():
            return node
    raise NotPredictedError(f"the hardware catalogue has no GPU {gpu}")


def _with_stated_speeds(run: Run, node: NodeType) -> NodeType:
    inter = _stated(run.inter_node_bandwidth, node.inter, devices=node.devices_per_node, column="inter_node_bw")
    intra = _stated(run.intra_node_bandwidth, node.intra, devices=1, column="intra_node_bw")
    return replace(node, inter=inter, intra=intra, network=_stated_kind(run.inter_node_bandwidth, otherwise=node.network))


def _stated_kind(text: str, *, otherwise: str) -> str:
    """The kind of network that the row states with its speed ("8x200 Gb/s HDR IB per node"), else the node type's."""
    words = set(re.findall("[a-z]+", text.lower()))
    return next((kind for word, kind in _KIND_OF_WORD.items() if word in words), otherwise)


def _stated(text: str, link: Link, *, devices: int, column: str) -> Link:
    """The link at the speed that the row states, "800 Gb/s per node" or "400 Gb/s per GPU"; unchanged if it states none."""
    if not text:
        return link
    found = _SPEED.search(text)
    if found is None:
        raise NotPredictedError(f"{column} is not a speed: {text}")
    bits_per_byte = 8 if found["unit"] == "b" else 1
    bytes_per_s = int(found["times"] or 1) * float(found["figure"]) * 1e9 / bits_per_byte
    if column == "inter_node_bw" and _PER_GPU.search(text):
        bytes_per_s *= devices
    return replace(link, bytes_per_s=bytes_per_s)
