"""The transfer time of keys and values from a prefill worker to a decode worker over the real links."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.queueing.simulation.disaggregated import CacheTransfer


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Devices of one worker: ``devices`` of a node group, from rank ``first``."""

    group: NodeGroup
    first: int
    devices: int


def kv_transfer(
    cluster: Cluster, sender: WorkerPlace, receiver: WorkerPlace, *, bytes_per_token: float, one_node: bool
) -> CacheTransfer:
    """CacheTransfer of a token's keys and values, ``bytes_per_token`` in all, between any sender and receiver of two pools.

    Inside one node devices use the node's fabric; between nodes each device has its share of the node's network cards, and
    the smaller of both workers' shares carries the transfer (oversubscription of the network between nodes divides it).
    Sends start when the prompt is done (vLLM's NixlConnector pulls whole requests), so nothing is hidden behind prefill.
    """
    if one_node:
        node = sender.group.node
        bandwidth = min(sender.devices, receiver.devices) * node.intra.bytes_per_s
        return CacheTransfer(node.intra.latency_s, bytes_per_token / bandwidth)
    shares = [
        place.devices * place.group.node.inter.bytes_per_s / place.group.node.devices_per_node for place in (sender, receiver)
    ]
    bandwidth = min(shares) / cluster.oversubscription
    latency_s = max(place.group.node.inter.latency_s for place in (sender, receiver))
    return CacheTransfer(latency_s, bytes_per_token / bandwidth)
