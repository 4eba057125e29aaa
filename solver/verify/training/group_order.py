"""Where a plan's ranks lie: the order in which they go through the node groups, and which devices have none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.costmodels.cluster.cluster import NodeGroup
from meshwright.solver.answer.pipeline_plan import placement_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import GroupOrder
from meshwright.solver.problem.request import PlanRequest, TrainingRequest
from meshwright.solver.verify.violation import Rule, Violation


def order_violations(plan: Plan, request: PlanRequest) -> Iterator[Violation]:
    """Every group with ranks once; another order than the cluster's, and idle devices, only in training plans whose search may
    choose them."""
    groups = {group.name: group for group in request.cluster.groups}
    placement = placement_of(plan)
    for name, idle in placement.idle_devices.items():
        where = f"plan.idle_devices.{name}"
        if name not in groups or not 1 <= idle <= groups[name].node.devices_per_node:
            yield Violation(Rule.DEVICES, where, f"{idle} devices of each node, which the cluster does not have")
            return
        if name not in request.search.idle_groups:
            yield Violation(Rule.SEARCH, where, f"{idle}, the request lets none be idle there")
    own = [name for name, group in groups.items() if _ranks_of_a_node(plan, group)]
    if not own:
        yield Violation(Rule.DEVICES, "plan.idle_devices", "no device is left")
    if not placement.group_order:
        return
    if sorted(placement.group_order) != sorted(own):
        yield Violation(Rule.DEVICES, "plan.group_order", f"{placement.group_order}, the groups in use are {own}")
    elif request.search.group_order is GroupOrder.GIVEN and list(placement.group_order) != own:
        yield Violation(Rule.SEARCH, "plan.group_order", f"{placement.group_order}, the request asks for {own}")


def ordered_request(plan: Plan, request: TrainingRequest) -> TrainingRequest:
    """The request with its groups as the plan's ranks meet them, idle devices left out with their share of the network."""
    places = {name: place for place, name in enumerate(placement_of(plan).group_order)}
    used = [_in_use(plan, group) for group in request.cluster.groups if _ranks_of_a_node(plan, group)]
    groups = sorted(used, key=lambda group: places.get(group.name, 0))
    return replace(request, cluster=replace(request.cluster, groups=tuple(groups)))


def _ranks_of_a_node(plan: Plan, group: NodeGroup) -> int:
    return group.node.devices_per_node - placement_of(plan).idle_devices.get(group.name, 0)


def _in_use(plan: Plan, group: NodeGroup) -> NodeGroup:
    left, whole = _ranks_of_a_node(plan, group), group.node.devices_per_node
    if left == whole:
        return group
    network = replace(group.node.inter, bytes_per_s=group.node.inter.bytes_per_s * left / whole)
    return replace(group, node=replace(group.node, devices_per_node=left, inter=network))
