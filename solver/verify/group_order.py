"""The order in which a plan's ranks go through the node groups of its cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from solver.plan import Plan
from solver.request import GroupOrder, PlanRequest
from solver.verify.violation import Rule, Violation


def order_violations(plan: Plan, request: PlanRequest) -> Iterator[Violation]:
    """Every group once; another order than the cluster's only in training plans whose search may choose it."""
    own = [group.name for group in request.cluster.groups]
    if not plan.group_order:
        return
    if sorted(plan.group_order) != sorted(own):
        yield Violation(Rule.DEVICES, "plan.group_order", f"{plan.group_order}, the cluster has {own}")
    elif plan.kind != "training" or (request.search.group_order is GroupOrder.GIVEN and list(plan.group_order) != own):
        yield Violation(Rule.SEARCH, "plan.group_order", f"{plan.group_order}, the request asks for {own}")


def ordered_request(plan: Plan, request: PlanRequest) -> PlanRequest:
    """The request with its groups as the plan's ranks meet them."""
    places = {name: place for place, name in enumerate(plan.group_order)}
    groups = sorted(request.cluster.groups, key=lambda group: places.get(group.name, 0))
    return replace(request, cluster=replace(request.cluster, groups=tuple(groups)))
