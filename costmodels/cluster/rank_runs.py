"""Runs of neighbouring ranks with others between them: the node groups that hold them, and the topology of groups of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.cluster.cluster import Cluster, Device, GroupTopology, NodeGroup, group_topology, topology_between

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RankRuns:
    """``count`` runs of ``length`` neighbours each, which begin ``leap`` ranks behind one another."""

    first: int
    length: int
    count: int = 1
    leap: int = 1

    @property
    def starts(self) -> range:
        """First rank of each run."""
        return range(self.first, self.first + self.count * self.leap, self.leap)


def groups_of_runs(cluster: Cluster, runs: RankRuns) -> tuple[NodeGroup, ...]:
    """Node groups that hold at least one rank of the runs, in the cluster's order."""
    found = [group for start in unlike_starts(cluster, runs) for group in cluster.groups_spanned(start, runs.length)]
    return tuple(group for group in cluster.groups if group in found)


def runs_topology(cluster: Cluster, runs: RankRuns, *, n: int, stride: int) -> GroupTopology:
    """Topology of n ranks of the runs, every ``stride``-th, counted through all runs.

    Groups inside a run are alike but for where on the nodes their run lies: the slowest decides. Of groups that hold ranks of
    several runs the first one stands for all, and where node groups differ the slowest.
    """
    if runs.count == 1:
        return group_topology(cluster, n=n, stride=stride, first=runs.first)
    if n * stride <= runs.length:
        return slowest(group_topology(cluster, n=n, stride=stride, first=start) for start in unlike_starts(cluster, runs))
    firsts = range(0, runs.length * runs.count, n * stride) if len(cluster.groups) > 1 else (0,)
    return slowest(_topology_at(cluster, runs, first + stride * np.arange(n, dtype=np.int64)) for first in firsts)


def slowest(topologies: Iterable[GroupTopology]) -> GroupTopology:
    """The slowest of groups of one size: of those that cross nodes, if any does, the one with the least of the network."""
    return min(topologies, key=lambda each: (not each.spans_nodes, each.inter_bytes_per_s, each.intra.bytes_per_s))


def unlike_starts(cluster: Cluster, runs: RankRuns) -> list[int]:
    """First ranks of the runs, one for each way in which runs lie on the nodes of a group; of all runs where leaf switches set
    neighbours apart."""
    if cluster.nodes_per_leaf is not None and cluster.oversubscription != 1.0:
        return list(runs.starts)
    found: dict[int, None] = {}
    begin = 0
    for group in cluster.groups:
        end, per_node = begin + group.n_devices, group.node.devices_per_node
        starts = runs.starts[_run_at(runs, begin) : _run_at(runs, end)]
        in_nodes = per_node % runs.leap == 0 and begin % runs.leap == 0
        period = 1 if in_nodes else per_node // math.gcd(runs.leap, per_node)
        found |= dict.fromkeys(starts[:period])
        if end < cluster.n_devices:
            # The last run that begins in a group may end in the next one.
            found |= dict.fromkeys(starts[-1:])
        begin = end
    return list(found)


def _run_at(runs: RankRuns, place: int) -> int:
    """Number of the first run that begins at a rank or behind it."""
    return min(runs.count, max(0, -(-(place - runs.first) // runs.leap)))


def _topology_at(cluster: Cluster, runs: RankRuns, places: IntArray) -> GroupTopology:
    """Topology of the ranks at some places, ascending, counted through all runs."""
    ranks = runs.first + places // runs.length * runs.leap + places % runs.length
    touched: list[tuple[NodeGroup, int]] = []
    nodes: list[int] = []
    begin = node = 0
    for group in cluster.groups:
        end = begin + group.n_devices
        of_node = (ranks[(ranks >= begin) & (ranks < end)] - begin) // group.node.devices_per_node
        if len(of_node):
            touched.append((group, int(np.bincount(of_node - of_node[0]).max())))
            nodes += [node + int(of_node[0]), node + int(of_node[-1])]
        begin, node = end, node + group.nodes
    return topology_between(cluster, touched, n=len(ranks), first_node=nodes[0], last_node=nodes[-1])


# Energy of accelerators from how long each kind of work keeps them busy.
#
# Power is the idle power, and of what lies between it and full power a share for each kind of work
# (the form of the linear model of Fan, Weber and Barroso, ISCA'07, by component). Host, network and
# cooling are not in it.

COMPUTING_ACTIVITY = 1.0
"""Share of the range that computing takes: all of it, since matrix units at work run boards into their power limit."""

COMMUNICATING_ACTIVITY = 0.5
"""Share that waiting for collectives takes: links, memory and the cores that copy work, matrix units rest. No measured split is
public, so half is taken; exposed communication is a small part of good plans."""


@dataclass(frozen=True, slots=True)
class BusyTime:
    """The time that a device works in a step of ``whole_s``; what is left over it idles."""

    computing_s: float
    communicating_s: float
    whole_s: float


def device_energy_j(device: Device, busy: BusyTime) -> float:
    """Joules of one device; never below its idle power, nor above its full power, for the whole time."""
    active_s = COMPUTING_ACTIVITY * busy.computing_s + COMMUNICATING_ACTIVITY * busy.communicating_s
    active_s = min(active_s, busy.whole_s)
    return device.idle_power_w * busy.whole_s + (device.power_w - device.idle_power_w) * active_s
