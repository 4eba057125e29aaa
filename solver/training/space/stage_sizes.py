"""Numbers of devices that stages of different degrees may have, and the cluster as stages of one size see it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.costmodels.cluster.cluster import NodeGroup, part_of_node
from meshwright.solver.problem.carried_choices import OF_MESHES
from meshwright.solver.problem.choices import BatchShares, GroupOrder, StageDegrees
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import Search

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
