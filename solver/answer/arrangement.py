"""The arrangement of a training plan's ranks: the devices of a node that hold some, and the node groups of the first layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, get_type_hints

from meshwright.costmodels.cluster.cluster import Cluster, part_of_node
from meshwright.costmodels.errors import PlanFileError
from meshwright.solver.answer.layouts import ByGroup, Layout, Pipelines, Placement, Stagewise, Uniform, Workers
from meshwright.solver.answer.pipeline_plan import with_placement
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import Axes, Stage
from meshwright.solver.problem.choice import LockPlace, Part, Place
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import LEDGER


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


# The values that a plan chose of each choice in the ledger, read from where the choice stands in the plan's layout.

_RECORDS: Mapping[Part, type[Any]] = {
    Part.AXES: Axes,
    Part.STAGES: Stage,
    Part.PIPELINES: Pipelines,
    Part.PLACEMENT: Placement,
}


def chosen(layout: Layout, place: Place) -> tuple[Any, ...]:
    """Return what stands at a place of a layout, once for each part of that kind; nothing where the layout has no such part."""
    return tuple(_at(part, place) for part in _parts(layout, place.part))


def usual(place: Place) -> Any:
    """Return what stands at a place of a plan that says nothing there, None for what every plan says."""
    return _usual[place]


def unusual_choices(layout: Layout | None) -> dict[str, str]:
    """Return, in words, the choices of a layout for which a plan has no field of its own to show; those left as usual are left
    out."""
    found: dict[str, str] = {}
    for entry in LEDGER.values():
        place = entry.choice.place
        if layout is None or place is None or entry.choice.lock is not LockPlace.CHOICES:
            continue
        values = chosen(layout, place)
        if any(value != usual(place) for value in values):
            found[entry.choice.word] = ", ".join(dict.fromkeys(map(_shown, values)) if _alike(values) else map(_shown, values))
    return found


def _alike(values: tuple[Any, ...]) -> bool:
    return all(value == values[0] for value in values)


def _shown(value: Any) -> str:
    """A chosen value in words: a share as a number, devices by their groups, ``usual`` for nothing said."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {count}" for name, count in sorted(value.items())) or "usual"
    if isinstance(value, tuple):
        return " then ".join(map(str, value)) or "usual"
    if isinstance(value, float):
        return f"{value:g}"
    return "usual" if value is None else str(value)


def _at(part: Any, place: Place) -> Any:
    for name in place.path.split("."):
        part = getattr(part, name)
    return max(1, len(part)) if place.counted else part


def _parts(layout: Layout, part: Part) -> tuple[Any, ...]:
    """The records of a layout that are parts of a kind."""
    if part is Part.FORM:
        return ()
    match layout:
        case Uniform(pipelines, placement):
            found: Mapping[Part, tuple[Any, ...]] = _of_pipelines((pipelines,), (pipelines.axes,), placement)
        case Stagewise(pipelines, placement):
            found = _of_pipelines((pipelines,), tuple(stage.axes for stage in pipelines.stages), placement)
        case ByGroup(groups, _, placement):
            of_groups = tuple(group.pipelines for group in groups)
            found = _of_pipelines(of_groups, tuple(each.axes for each in of_groups), placement)
        case _:
            found = _of_workers(layout.all_workers)
    return found.get(part, ())


def _of_pipelines(
    pipelines: tuple[Pipelines, ...], axes: tuple[Axes, ...], placement: Placement
) -> Mapping[Part, tuple[Any, ...]]:
    stages = tuple(stage for each in pipelines for stage in each.stages)
    return {Part.AXES: axes, Part.STAGES: stages, Part.PIPELINES: pipelines, Part.PLACEMENT: (placement,)}


def _of_workers(workers: tuple[Workers, ...]) -> Mapping[Part, tuple[Any, ...]]:
    stages = tuple(stage for each in workers for stage in each.stages)
    return {Part.AXES: tuple(each.axes for each in workers), Part.STAGES: stages}


def _usual_at(place: Place) -> Any:
    """The default at a place; raises TypeError for a path that no layout has."""
    record, value = _RECORDS[place.part], None
    for name in place.path.split("."):
        known = {each.name: each for each in fields(record)}
        if name not in known:
            raise TypeError(f"no plan has {place.path!r} in its {place.part.name.lower()}: {record.__name__} has no {name!r}")
        default, factory = known[name].default, known[name].default_factory
        value = factory() if factory is not MISSING else None if default is MISSING else default
        record = get_type_hints(record)[name]
    return max(1, len(value or ())) if place.counted else value


_usual = {
    place: _usual_at(place)
    for place in (entry.choice.place for entry in LEDGER.values())
    if place is not None and place.part is not Part.FORM
}
"""Made at import, so that a choice which stands where no plan has anything stops all."""
