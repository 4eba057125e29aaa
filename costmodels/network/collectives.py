"""Time of a collective over a rank group: rings, trees and direct exchange over a node's fabric and the network.

Convention: ``message_bytes`` is the size S of the whole tensor: an all-gather's output, a reduce-scatter's input, the
tensor of an all-reduce or broadcast, a rank's whole buffer in an all-to-all, what one rank sends in a send/recv.

Inside a node, times follow curves fitted to NCCL's where there are measurements. Between nodes they follow the curves of a
fabric that was measured on the cluster. Where none was, they follow the latencies and protocol efficiencies of NCCL's own
tuning model, at the share of line rate that networks of its kind reach, and `collective_error` states the larger error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.calibration.collectives import Collective, CollectiveCalibration, GroupCurve, collective_calibration
from meshwright.costmodels.calibration.kernels import KernelError
from meshwright.costmodels.calibration.networks import FabricCurve, NetworkCalibration, network_calibration
from meshwright.costmodels.cluster.cluster import GroupTopology

__all__ = ["Collective", "bytes_per_rank", "collective_error", "collective_s"]

Floats = NDArray[np.float64]
Bytes = float | NDArray[np.float64] | NDArray[np.int64]
Seconds = float | NDArray[np.float64]

MEGABYTE = 1e6

CONCURRENT_PEERS = 8
"""Peers that NCCL serves at once in a grouped send/recv (NCCL src/include/comm.h, connections a p2p work batch)."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """An NCCL protocol: latencies beyond those of the links themselves, and the share of bandwidth that it leaves.

    NCCL src/graph/tuning.cc, baseLat and hwLat: start of a collective; a ring or tree step inside a node (NVLINK less
    0.6 us) and between nodes (NET less 2.7 us). Shares: flags take half of LL's lines, 8 of 128 bytes of LL128's; LL's
    rings reach a quarter of Simple's rate.
    """

    start_s: float
    ring_step_s: float
    ring_hop_s: float
    tree_step_s: float
    tree_hop_s: float
    share: float


PROTOCOLS = (
    Protocol(6.6e-6, 0.0, 0.0, 0.0, 2.3e-6, 0.25),  # LL
    Protocol(14.0e-6, 1.3e-6, 1.3e-6, 0.65e-6, 5.8e-6, 0.92),  # LL128
    Protocol(8.4e-6, 2.8e-6, 11.3e-6, 3.4e-6, 11.3e-6, 1.0),  # Simple
)

TREE_SHARE = 0.9
"""Bandwidth of a tree over that of a ring (NCCL src/graph/tuning.cc)."""


def bytes_per_rank(kind: Collective, n: int, message_bytes: Bytes) -> Seconds:
    """Bytes each of n ranks sends (survey Table 2): (n-1)/n S, twice that for an all-reduce; S for a send or broadcast."""
    if n == 1:
        factor = 0.0
    elif kind in (Collective.SEND_RECV, Collective.BROADCAST):
        factor = 1.0
    else:
        factor = (2.0 if kind is Collective.ALL_REDUCE else 1.0) * (n - 1) / n
    return np.asarray(message_bytes, np.float64) * factor if np.ndim(message_bytes) else float(message_bytes) * factor


def collective_s(kind: Collective, message_bytes: Bytes, topology: GroupTopology) -> Seconds:
    """Seconds of one collective of the group that ``topology`` describes; arrays of sizes give arrays of times.

    A group of one rank, or a message of no bytes, takes no time.
    """
    size = np.asarray(message_bytes, np.float64)
    if topology.n == 1:
        seconds = np.zeros(size.shape)
    else:
        calibration = collective_calibration(topology.calibration)
        seconds = _fastest_s(kind, size, topology, calibration)
        if kind is Collective.ALL_REDUCE:
            # An all-reduce holds a reduce-scatter: two fitted curves must not cross.
            seconds = np.maximum(seconds, _fastest_s(Collective.REDUCE_SCATTER, size, topology, calibration))
        seconds = np.where(size > 0, seconds, 0.0)
    return seconds if size.ndim else float(seconds)


def collective_error(topology: GroupTopology) -> KernelError:
    """Relative error of the group's collectives: held out, stated for a device not measured, or the network's."""
    if topology.spans_nodes:
        return network_calibration(topology.network).error
    return collective_calibration(topology.calibration).error


def _fastest_s(kind: Collective, message_bytes: Floats, topology: GroupTopology, calibration: CollectiveCalibration) -> Floats:
    """By the algorithm that NCCL would choose: the fastest it has for the group."""
    if not topology.spans_nodes:
        return _inside_node_s(kind, message_bytes, topology.n, topology, calibration)
    network = network_calibration(topology.network)
    curve = network.curve(kind, topology.ranks_per_node)
    if curve is not None:
        return fabric_s(curve, kind, message_bytes, topology)
    if kind is Collective.ALL_TO_ALL:
        seconds = _exchange_s(message_bytes, topology, calibration, network)
    else:
        seconds = _ring_s(kind, message_bytes, topology, calibration, network)
    if kind is Collective.ALL_REDUCE:
        seconds = np.asarray(np.minimum(seconds, _tree_s(message_bytes, topology, calibration, network)))
    return seconds if kind is Collective.SEND_RECV else seconds + network.rank_s * (topology.n - 1)


def fabric_s(curve: FabricCurve, kind: Collective, message_bytes: Floats, topology: GroupTopology) -> Floats:
    """Seconds of a collective between nodes by the curve of a measured fabric."""
    line_s = message_bytes * line_share(kind, topology.n, topology.ranks_per_node) / topology.inter_bytes_per_s
    return np.asarray(curve.seconds(line_s, topology.n), np.float64)


def line_share(kind: Collective, n: int, ranks_per_node: int) -> float:
    """Bytes that a group's part of a node's cards carries over the bytes of the message: a ring's, or of an all-to-all what its
    ranks on the node send to other nodes."""
    if kind is Collective.ALL_TO_ALL:
        return ranks_per_node * (n - ranks_per_node) / n
    return float(bytes_per_rank(kind, n, 1.0))


def _inside_node_s(
    kind: Collective, message_bytes: Floats, n: int, topology: GroupTopology, calibration: CollectiveCalibration
) -> Floats:
    """A group of n ranks on one node: by its measured curve, else as a ring."""
    sent_bytes = message_bytes * bytes_per_rank(kind, n, 1.0)
    # A broadcast pipelines the tensor around the ring as an all-gather does its shards.
    curve = calibration.curve(Collective.ALL_GATHER if kind is Collective.BROADCAST else kind, n)
    if curve is None:
        return _ring_s(kind, message_bytes, topology, calibration)
    return curve_s(curve, sent_bytes, _fabric_bytes_per_s(n, topology, calibration))


def curve_s(curve: GroupCurve, sent_bytes: Floats, bytes_per_s: float) -> Floats:
    """Seconds of a collective in which each rank sends the given bytes over a fabric of the given speed."""
    times = [
        latency_s + sent_bytes / (share * bytes_per_s) for latency_s, share in zip(curve.latencies_s, curve.shares, strict=True)
    ]
    times[-1] = times[-1] + curve.root_s * np.sqrt(sent_bytes / MEGABYTE)
    return np.asarray(np.min(times, axis=0))


def _ring_s(
    kind: Collective,
    message_bytes: Floats,
    topology: GroupTopology,
    calibration: CollectiveCalibration,
    network: NetworkCalibration | None = None,
) -> Floats:
    """A ring through all ranks, each node entered and left once, by the fastest protocol; without a network inside a node."""
    n, nodes = topology.n, _nodes(topology)
    rounds = 2 if kind is Collective.ALL_REDUCE else 1
    steps, hops = (1, nodes - 1) if kind is Collective.SEND_RECV else (rounds * (n - 1), rounds * (nodes - 1))
    sent_bytes = message_bytes * bytes_per_rank(kind, n, 1.0)
    bytes_per_s = _ring_bytes_per_s(topology, calibration, network)
    intra_s, inter_s = topology.intra.latency_s, topology.inter_latency_s
    times = [
        protocol.start_s
        + (steps - hops) * (intra_s + protocol.ring_step_s)
        + hops * (inter_s + protocol.ring_hop_s)
        + sent_bytes / (protocol.share * bytes_per_s)
        for protocol in PROTOCOLS
    ]
    return np.asarray(np.min(times, axis=0))


def _tree_s(
    message_bytes: Floats, topology: GroupTopology, calibration: CollectiveCalibration, network: NetworkCalibration
) -> Floats:
    """An all-reduce up and down a double binary tree of nodes, a chain inside each, by the fastest protocol."""
    bytes_per_s = TREE_SHARE * _ring_bytes_per_s(topology, calibration, network)
    intra_s, inter_s = topology.intra.latency_s, topology.inter_latency_s
    steps, levels = topology.ranks_per_node - 1, math.ceil(math.log2(_nodes(topology)))
    times = [
        protocol.start_s
        + 2 * (steps * (intra_s + protocol.tree_step_s) + levels * (inter_s + protocol.tree_hop_s))
        + 2 * message_bytes / (protocol.share * bytes_per_s)
        for protocol in PROTOCOLS
    ]
    return np.asarray(np.min(times, axis=0))


def _exchange_s(
    message_bytes: Floats, topology: GroupTopology, calibration: CollectiveCalibration, network: NetworkCalibration
) -> Floats:
    """An all-to-all over nodes: peers of the node over the fabric, the others over the network, at the same time."""
    n, here = topology.n, topology.ranks_per_node
    rounds = math.ceil((n - here) / CONCURRENT_PEERS)
    network_bytes_per_s = network.share * topology.inter_bytes_per_s / here
    network_s = message_bytes * ((n - here) / n) / network_bytes_per_s
    seconds = PROTOCOLS[0].start_s + rounds * topology.inter_latency_s + network_s
    if here == 1:
        return seconds
    fabric_s = _inside_node_s(Collective.ALL_TO_ALL, message_bytes * (here / n), here, topology, calibration)
    return np.asarray(np.maximum(seconds, fabric_s))


def _ring_bytes_per_s(topology: GroupTopology, calibration: CollectiveCalibration, network: NetworkCalibration | None) -> float:
    """Bytes/s a ring carries: the narrower of the node's fabric and the group's share of the node's network cards."""
    inside = calibration.link_share * _fabric_bytes_per_s(topology.ranks_per_node, topology, calibration)
    if network is None:
        return inside
    between = network.share * topology.inter_bytes_per_s
    return between if topology.ranks_per_node == 1 else min(inside, between)


def _fabric_bytes_per_s(n: int, topology: GroupTopology, calibration: CollectiveCalibration) -> float:
    """Bytes/s a device sends to the n - 1 others of its group: some of its links, where they join devices pairwise."""
    return topology.intra.bytes_per_s * links_used(n, calibration.mesh_links)


def links_used(n: int, mesh_links: int | None) -> float:
    """Share of a device's links that lead to the n - 1 others of its group: all of them behind a switch (None)."""
    return min(1.0, (n - 1) / mesh_links) if mesh_links else 1.0


def _nodes(topology: GroupTopology) -> int:
    return -(-topology.n // topology.ranks_per_node)
