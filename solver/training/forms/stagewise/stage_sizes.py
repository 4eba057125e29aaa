"""How many devices stages of different degrees may have, where on the cluster they lie, and every way to run one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.costmodels.cluster.cluster import Cluster, GroupTopology, NodeGroup, group_topology, part_of_node
from meshwright.solver.answer.stage import DeviceRange
from meshwright.solver.control import Stop, heed
from meshwright.solver.problem.carried_choices import OF_MESHES
from meshwright.solver.problem.choices import BatchShares, GroupOrder, Recompute, StageDegrees
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import FloatArray, Sharding, StageTable
from meshwright.solver.training.space.candidates import Candidate, families
from meshwright.solver.training.space.schedules import PLAIN

# Numbers of devices that stages of different degrees may have, and the cluster as stages of one size see it.

MOST_IN_ANY_PARTS = 24
"""Devices of a node that parts of any size which divides them always fill: no stages of such sizes, however many, together
as large as two of these nodes leave every choice of them short of a node (enumerated for every size up to this)."""


def stage_sizes(request: TrainingRequest, group: NodeGroup) -> tuple[int, ...]:
    """Divisors of a node's devices (of nodes of more than `MOST_IN_ANY_PARTS`, powers of two), and any number of whole nodes of
    a group, so that two stages fit the cluster; whole nodes alone where state or activations may leave the device, since
    devices of a node share its host.

    Any such stages that add up to the group fill it: none need be cut by the border of a node (`laid_out`).
    """
    whole = group.node.devices_per_node
    inside = [part for part in range(1, whole) if whole % part == 0]
    if whole > MOST_IN_ANY_PARTS:
        inside = [part for part in inside if part.bit_count() == 1]
    inside = [] if uses_hosts(request.search) else inside
    nodes = [whole * count for count in range(1, group.nodes + 1)]
    return tuple(size for size in (*inside, *nodes) if size < request.cluster.n_devices)


def uses_hosts(search: Search) -> bool:
    """Return True if a plan of the search may move anything to hosts or their drives."""
    shares = (search.offload_optimizer, search.offload_activations, search.offload_weights, search.offload_gradients)
    return any(share > 0 for allowed in shares for share in allowed)


def sized_request(request: TrainingRequest, group: NodeGroup, size: int, *, pp: int) -> TrainingRequest:
    """The request on ``pp`` stages of so many devices of a group each, none sharing a node with another: what one stage sees
    of the cluster, with its share of the node's network."""
    whole = group.node.devices_per_node
    used = min(size, whole)
    usual: dict[str, Any] = {name: (choice.usual,) for name, choice in OF_MESHES.items()}
    search = replace(
        request.search,
        pp=(pp,),
        stage_degrees=StageDegrees.SAME,
        batch_shares=BatchShares.EVEN,
        group_order=GroupOrder.GIVEN,
        idle_groups=(),
        **usual,
    )
    nodes = replace(group, node=part_of_node(group.node, used), nodes=pp * size // used)
    return replace(request, cluster=replace(request.cluster, groups=(nodes,), nodes_per_leaf=None), search=search)


# Where on the cluster the stages lie, and every way to run one of them.

Borders = tuple[GroupTopology | None, GroupTopology | None]
"""Links of a stage to the one before and the one behind it; None for the network of its own nodes."""


@dataclass(frozen=True, slots=True)
class StageBegin:
    """Where stages of a size may begin: behind the ``fewest`` to the ``most`` devices of earlier stages; and their borders."""

    fewest: int
    most: int
    borders: Borders


def places(cluster: Cluster, index: int, size: int) -> tuple[StageBegin, ...]:
    """Where stages of a size may lie in one of the cluster's groups, through which the pipeline goes in order.

    The first stage in a group receives from the one before it and the last sends to the one behind it, over the slower network.
    """
    group = cluster.groups[index]
    start = sum(each.n_devices for each in cluster.groups[:index])
    end = start + group.n_devices - size
    found: list[StageBegin] = []
    for fewest, most in ((start, start), (start + 1, end - 1), (max(start + 1, end), end)):
        if fewest > most:
            continue
        before = cluster.groups[index - 1] if index and fewest == start else group
        behind = cluster.groups[index + 1] if fewest == end and index + 1 < len(cluster.groups) else group
        borders = stage_links(
            cluster,
            group,
            before=before if fewest else None,
            behind=behind if end + size < cluster.n_devices or fewest < end else None,
        )
        if found and found[-1].borders == borders:
            found[-1] = replace(found[-1], most=most)
        else:
            found.append(StageBegin(fewest, most, borders))
    return tuple(found)


def stage_links(cluster: Cluster, group: NodeGroup, *, before: NodeGroup | None, behind: NodeGroup | None) -> Borders:
    """Links of a stage of a group to its neighbours, in other groups or its own; at an end of the pipeline (None) the link of
    the other border stands for both."""
    first, last = (None if other is None else _slower_link(cluster, group, other) for other in (before, behind))
    return (last, last) if before is None else (first, first) if behind is None else (first, last)


def every_border(cluster: Cluster, group: NodeGroup) -> tuple[Borders, ...]:
    """Every borders that a stage of a group can have, whatever the order of the groups; the same tuple for every order."""
    slower = {link for other in cluster.groups if (link := _slower_link(cluster, group, other)) is not None}
    links = (None, *sorted(slower, key=lambda link: (link.inter_bytes_per_s, link.inter_latency_s, link.calibration)))
    return tuple((before, behind) for before in links for behind in links)


def _slower_link(cluster: Cluster, own: NodeGroup, other: NodeGroup) -> GroupTopology | None:
    """A device's share of another group's network where that is slower than of its own group's; else None."""
    if other == own:
        return None
    theirs, ours = _network_link(cluster, other), _network_link(cluster, own)
    slower = (theirs.inter_bytes_per_s, -theirs.inter_latency_s) < (ours.inter_bytes_per_s, -ours.inter_latency_s)
    return theirs if slower else None


def _network_link(cluster: Cluster, group: NodeGroup) -> GroupTopology:
    """Return the topology of the network of a group's device, beside all others of its node."""
    single = replace(group, node=part_of_node(group.node, 1), nodes=2)
    return group_topology(replace(cluster, groups=(single,), nodes_per_leaf=None), n=2, stride=1)


def laid_out(cluster: Cluster, stages: Sequence[tuple[NodeGroup, int]]) -> tuple[DeviceRange, ...]:
    """Ranks of stages, each of so many devices of a group, in order of the stages: in each group whole nodes first, then node
    by node the largest that fill it, of equal ones the earlier."""
    ranges: dict[int, DeviceRange] = {}
    first = 0
    for group in cluster.groups:
        here = sorted((-size, stage) for stage, (of, size) in enumerate(stages) if of.name == group.name)
        place = first
        for stage in _filling([(stage, -size) for size, stage in here], group.node.devices_per_node):
            ranges[stage] = DeviceRange(place, stages[stage][1])
            place += stages[stage][1]
        first += group.n_devices
    return tuple(ranges[stage] for stage in range(len(stages)))


def _filling(sized: Sequence[tuple[int, int]], whole: int) -> list[int]:
    """Stages with their sizes, largest first, in an order in which those smaller than a node fill one after another."""
    order = [stage for stage, size in sized if size >= whole]
    left = [(stage, size) for stage, size in sized if size < whole]
    while left:
        chosen = _exactly(left, whole) or left
        order += [stage for stage, _ in chosen]
        left = [each for each in left if each not in chosen]
    return order


def _exactly(sized: Sequence[tuple[int, int]], total: int) -> list[tuple[int, int]] | None:
    """The first of the stages, larger ones before smaller, that together have so many devices; None where none do."""
    if total == 0:
        return []
    tried = set[int]()
    for place, (stage, size) in enumerate(sized):
        if size > total or size in tried:
            continue
        tried.add(size)
        rest = _exactly(sized[place + 1 :], total - size)
        if rest is not None:
            return [(stage, size), *rest]
    return None


# Ways to run a stage of so many devices of a node group: every candidate, sharding and recompute mode that no other beats.


@dataclass(frozen=True, eq=False)
class Way:
    """One way to run a stage, under one recompute mode; ``boundary_s`` is what a micro-batch's sends take between each of the
    borders that `stage_ways` was asked for."""

    costs: TrainingCosts
    candidate: Candidate
    sharding: Sharding
    mode: Recompute
    table: StageTable
    boundary_s: tuple[float, ...]


def stage_ways(request: TrainingRequest, borders: Sequence[Borders], *, stop: Stop) -> dict[int, list[Way]] | None:
    """Ways to run a stage of `stage_sizes.sized_request` by the number of micro-batches; those that others beat between all of
    these borders left out. None when stopped."""
    found: dict[int, list[Way]] = {}
    costs, layers = TrainingCosts(request), _unlike_layers(request.model)
    with costs.stopped_by(stop):
        for family in families(request):
            heed(stop)
            if PLAIN in family.pipelinings:
                known = found.setdefault(family.n_microbatches, [])
                for candidate in family.candidates():
                    heed(stop)
                    if candidate.pipelining == PLAIN:
                        known += _of_candidate(costs, candidate, borders)
        return {count: _unbeaten(ways, layers, stop) for count, ways in found.items()}
    return None


def stage_table(costs: TrainingCosts, candidate: Candidate, sharding: Sharding, borders: Borders) -> StageTable:
    """The table of a stage between these borders."""
    table = costs.table(candidate, costs.stage_kinds(candidate)[0], sharding)
    return table if borders == (None, None) else replace(table, boundary_s=_boundary_s(costs, candidate, borders))


def _boundary_s(costs: TrainingCosts, candidate: Candidate, borders: Borders) -> float:
    kind = costs.stage_kinds(candidate)[0]
    links = tuple(own if link is None else link for link, own in zip(borders, kind.borders, strict=True))
    between = replace(kind, borders=links)
    return max(costs.boundary_s(candidate, between, setting) for setting in costs.settings(candidate, kind))


def _of_candidate(costs: TrainingCosts, candidate: Candidate, borders: Sequence[Borders]) -> Iterator[Way]:
    kinds = costs.stage_kinds(candidate)
    boundary_s = tuple(_boundary_s(costs, candidate, each) for each in borders)
    for sharding in costs.shardings(candidate, kinds):
        table = costs.table(candidate, kinds[0], sharding)
        for row, mode in enumerate(candidate.recompute):
            yield Way(costs, candidate, sharding, mode, _only(table, row), boundary_s)


def _only(table: StageTable, row: int) -> StageTable:
    """The table of one recompute mode."""
    return replace(
        table,
        time_s=table.time_s[row : row + 1],
        activation_bytes=table.activation_bytes[row : row + 1],
        transient_bytes=table.transient_bytes[row : row + 1],
        parts=replace(table.parts, host_activation_bytes=table.parts.host_activation_bytes[row : row + 1]),
    )


def _unlike_layers(model: ModelGraph) -> list[int]:
    """Layers that stand for all: copies of a block cost the same, but for the model's first layer."""
    return sorted({0, *{name: layer for layer, name in enumerate(model.layers)}.values()})


def _unbeaten(ways: list[Way], layers: list[int], stop: Stop) -> list[Way]:
    """Ways that no other beats or equals in every cost of every layer; of equal ones the first. Raises SearchStopped."""
    if not ways:
        return []
    costs = np.array([_losses(way, layers) for way in ways])
    order = np.lexsort((np.arange(len(ways)), costs.sum(axis=1)))
    kept: list[int] = []
    for index in order:
        heed(stop)
        if not kept or not (costs[kept] <= costs[index]).all(axis=1).any():
            kept.append(int(index))
    return [ways[index] for index in sorted(kept)]


def _losses(way: Way, layers: list[int]) -> FloatArray:
    """Everything of which less is better."""
    table = way.table
    host = table.parts.host_activation_bytes[0], table.parts.host_static_bytes, table.parts.nvme_bytes
    columns = (table.time_s[0], table.activation_bytes[0], table.transient_bytes[0], table.static_bytes, table.extra_s, *host)
    rest = [
        *way.boundary_s,
        table.step_s,
        -table.capacity_bytes,
        -table.parts.host_capacity_bytes,
        -table.parts.nvme_capacity_bytes,
    ]
    return np.concatenate([*(column[layers] for column in columns), rest])
