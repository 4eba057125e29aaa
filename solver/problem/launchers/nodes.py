"""Nodes of a cluster as launchers see them, which take all nodes for equal."""

from __future__ import annotations

from meshwright.costmodels.cluster.cluster import Cluster

ON_ONE_NODE = 8
"""Up to so many ranks are taken for those of one node (nanotron, parallel/context.py)."""


def suits_equal_nodes(cluster: Cluster) -> bool:
    """Return True for hosts of equally many devices, and for one host where there are few devices."""
    nodes = [group.node for group in cluster.groups]
    if cluster.n_devices <= ON_ONE_NODE:
        return cluster.n_devices == nodes[0].host_devices
    return len({node.host_devices for node in nodes}) == 1 and all(
        node.devices_per_node % node.host_devices == 0 for node in nodes
    )
