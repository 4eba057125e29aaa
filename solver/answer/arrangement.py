"""The arrangement of a training plan's ranks: the devices of a node that hold some, and the node groups of the first layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from meshwright.costmodels.cluster.cluster import Cluster, part_of_node
from meshwright.costmodels.errors import PlanFileError
from meshwright.solver.answer.layouts import Placement
from meshwright.solver.answer.pipeline_plan import with_placement
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import TrainingRequest


@dataclass(frozen=True)
class Arrangement:
    """Names of node groups in the order in which ranks go through them, empty for the cluster's own; and by name the devices
    that each node of a group leaves idle, if any."""

    order: tuple[str, ...] = ()
    idle: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """In a few words."""
        idle = ", ".join(f"{count} idle in each node of {name}" for name, count in self.idle.items()) or "no device idle"
        order = f"node groups in the order {', '.join(self.order)}" if self.order else "node groups in the order given"
        return f"{order}, {idle}" if self.idle else order

    @property
    def notes(self) -> tuple[str, ...]:
        """The steps that the user must take to lay ranks so, in words."""
        said = []
        if self.order:
            said.append(f"ranks go through the node groups in the order {', '.join(self.order)}: list hosts in that order")
        said += [f"each node of {name} leaves {count} of its devices idle" for name, count in self.idle.items()]
        return tuple(said)


def arranged(request: TrainingRequest, arrangement: Arrangement) -> TrainingRequest:
    """The request with its node groups as an arrangement has them; raises PlanFileError where it does not fit the cluster."""
    cluster = without_idle(request.cluster, arrangement.idle)
    names = arrangement.order
    by_name = {group.name: group for group in cluster.groups}
    if names and sorted(names) != sorted(by_name):
        raise PlanFileError(
            "the plan's group_order does not name the cluster's node groups, each once",
            given=", ".join(names),
            allowed=", ".join(by_name),
        )
    groups = tuple(by_name[name] for name in names) if names else cluster.groups
    return replace(request, cluster=replace(cluster, groups=groups))


def arrangement_of(placement: Placement) -> Arrangement:
    """Return the arrangement of a plan's ranks."""
    return Arrangement(placement.group_order, placement.idle_devices)


def in_arrangement(plan: Plan, arrangement: Arrangement) -> Plan:
    """The training plan, which says that its ranks are in an arrangement."""
    return with_placement(plan, group_order=arrangement.order, idle_devices=arrangement.idle)


def without_idle(cluster: Cluster, idle: Mapping[str, int]) -> Cluster:
    """The part of the cluster that holds ranks; raises PlanFileError for groups or numbers that it does not have."""
    known = {group.name: group.node.devices_per_node for group in cluster.groups}
    if any(not 0 < count <= known.get(name, 0) for name, count in idle.items()):
        raise PlanFileError(
            "the plan's idle_devices are not devices of the cluster's nodes",
            given=", ".join(f"{name}: {count}" for name, count in idle.items()),
            allowed=", ".join(f"{name}: 1 to {count}" for name, count in known.items()),
        )
    left = ((group, group.node.devices_per_node - idle.get(group.name, 0)) for group in cluster.groups)
    used = tuple(replace(group, node=part_of_node(group.node, count)) for group, count in left if count)
    if not used:
        raise PlanFileError("the plan leaves every device idle", given=", ".join(idle))
    return replace(cluster, groups=used)
