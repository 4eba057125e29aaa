"""Measurements of a network between nodes that follow a known law exactly."""

from __future__ import annotations

from typing import Any

from meshwright.app.evidence.measuring.fabric_script import COLLECTIVES, shapes_of
from meshwright.costmodels.calibration.collectives import Collective
from meshwright.costmodels.network.collectives import line_share

LATENCY_S, RANK_S, SHARE = 3e-5, 2e-6, 0.8
PAIRS = 2


def measurements(
    nodes: int = 8, devices_per_node: int = 8, *, node_bytes_per_s: float = 400e9, share: float = SHARE
) -> dict[str, Any]:
    """The file that the script would write of nodes whose network reaches a share of its line rate; one group of a rank a node
    alone takes its card's part of the network."""
    rows = []
    for shape in shapes_of(nodes, devices_per_node):
        ranks = shape.nodes * shape.ranks_per_node
        for kind in COLLECTIVES:
            if kind == "send_recv" and (shape.nodes, shape.ranks_per_node) != (PAIRS, 1):
                continue
            for power in range(10, 31, 2):
                carried = 2**power * line_share(Collective(kind), ranks, shape.ranks_per_node)
                line_s = carried * devices_per_node / shape.ranks_per_node / node_bytes_per_s
                rows.append(
                    {
                        "collective": kind,
                        "ranks": ranks,
                        "ranks_per_node": shape.ranks_per_node,
                        "groups_per_node": shape.groups_per_node,
                        "message_bytes": 2**power,
                        "time_s": LATENCY_S + RANK_S * (ranks - 1) + line_s / share,
                    }
                )
    return {
        "schema": "meshwright.fabric-measurements/1",
        "nodes": nodes,
        "devices_per_node": devices_per_node,
        "device": "made up",
        "backend": "nccl",
        "software": "torch 2.9",
        "rows": rows,
    }
