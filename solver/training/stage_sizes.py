"""Numbers of devices that stages of different degrees may have, and the nodes that a stage of one of them sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costmodels.cluster import part_of_node
from solver.plan import DeviceRange
from solver.request import BatchShares, GroupOrder, PlanRequest, Search, StageDegrees


def stage_sizes(request: PlanRequest) -> tuple[int, ...]:
    """Powers of two that divide a node's devices, and powers of two of whole nodes, as far as two stages fit; whole nodes alone
    where state or activations may leave the device, since devices of a node share its host.

    Any such stages that add up to the cluster fill it, the largest laid first: none is cut by the border of a node.
    """
    (group,) = request.cluster.groups
    whole = group.node.devices_per_node
    inside = [2**k for k in range(whole.bit_length()) if whole % 2**k == 0 and 2**k < whole]
    inside = [] if uses_hosts(request.search) else inside
    nodes = [whole * 2**k for k in range(group.nodes.bit_length())]
    return tuple(size for size in (*inside, *nodes) if size < request.cluster.n_devices)


def uses_hosts(search: Search) -> bool:
    """Whether a plan of the search may move anything to hosts or their drives."""
    shares = (search.offload_optimizer, search.offload_activations, search.offload_weights, search.offload_gradients)
    return any(share > 0 for allowed in shares for share in allowed)


def sized_request(request: PlanRequest, size: int, *, pp: int) -> PlanRequest:
    """The request on ``pp`` stages of so many devices each, none sharing a node with another: what one stage sees of the
    cluster, with its share of the node's network."""
    (group,) = request.cluster.groups
    whole = group.node.devices_per_node
    used = min(size, whole)
    search = replace(
        request.search,
        pp=(pp,),
        stage_degrees=StageDegrees.SAME,
        batch_shares=BatchShares.EVEN,
        group_order=GroupOrder.GIVEN,
        idle_groups=(),
    )
    nodes = replace(group, node=part_of_node(group.node, used), nodes=pp * size // used)
    return replace(request, cluster=replace(request.cluster, groups=(nodes,), nodes_per_leaf=None), search=search)


def laid_out(sizes: Sequence[int]) -> tuple[DeviceRange, ...]:
    """Ranks of stages of these sizes, in order of the stages: the largest have the first ranks, of equal ones the earlier."""
    ranges: dict[int, DeviceRange] = {}
    first = 0
    for stage in sorted(range(len(sizes)), key=lambda stage: (-sizes[stage], stage)):
        ranges[stage] = DeviceRange(first, sizes[stage])
        first += sizes[stage]
    return tuple(ranges[stage] for stage in range(len(sizes)))
