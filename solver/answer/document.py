"""From a plan to the flat fields of its document, and back.

Inside, a plan has a layout of one form (`solver.answer.layouts`). Its document is flat (`solver.answer.plan_record`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from meshwright.costmodels.errors import PlanFileError
from meshwright.solver.answer import layouts
from meshwright.solver.answer.layouts import named, record_as
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.plan_record import PlanRecord, ReplicaPool, ReplicaShares
from meshwright.solver.answer.plan_record import ServingLayout as ServingFields


def record_of(plan: Plan) -> PlanRecord:
    """Return the plan as the fields of its document."""
    own = {each.name: getattr(plan, each.name) for each in fields(Plan) if each.name != "layout"}
    return PlanRecord(**own, **({} if plan.layout is None else _flat(plan.layout)))


def plan_of(record: PlanRecord) -> Plan:
    """Return the plan of a document; raises PlanFileError where its fields are of several forms, or not enough for one."""
    own = {each.name: getattr(record, each.name) for each in fields(Plan) if each.name != "layout"}
    plan = Plan(**own, layout=_LAYOUT_OF[record.kind](record))
    back = record_of(plan)
    lost = [each.name for each in fields(record) if getattr(record, each.name) != getattr(back, each.name, None)]
    if lost:
        form = "no layout" if plan.layout is None else type(plan.layout).__name__.lower()
        raise PlanFileError(
            "a plan has the fields of one form, and all of them",
            given=f"{', '.join(lost)} in a {record.kind} plan of the form: {form}",
            allowed="the fields of one form of layout (docs/plan-format.md)",
        )
    return plan


def _flat(layout: layouts.Layout) -> dict[str, Any]:
    """The fields of a document that a layout fills."""
    match layout:
        case layouts.Uniform() | layouts.Stagewise():
            return named(layout.pipelines) | named(layout.placement)
        case layouts.ByGroup():
            first, *others = layout.groups
            pools = tuple(record_as(ReplicaPool, replicas.pipelines, **named(replicas, but="pipelines")) for replicas in others)
            shares = ReplicaShares(first.sequences, first.step_time_s, layout.exchange_s, pools)
            return named(first.pipelines) | named(layout.placement) | {"shares": shares}
        case _:
            return flat_serving(layout)


def _training_layout(record: PlanRecord) -> layouts.TrainingLayout | None:
    if record.axes is None or record.microbatch is None or record.schedule is None or not record.stages:
        return None
    pipelines = record_as(layouts.Pipelines, record)
    placement = record_as(layouts.Placement, record)
    if record.shares is not None:
        shares = record.shares
        others = tuple(
            record_as(layouts.GroupReplicas, pool, pipelines=record_as(layouts.Pipelines, pool)) for pool in shares.pools
        )
        # The flat form does not name the first group: it is the cluster's.
        first = layouts.GroupReplicas("", shares.sequences, shares.step_time_s, pipelines)
        return layouts.ByGroup((first, *others), shares.exchange_s, placement)
    if any(stage.shardings for stage in record.stages):
        return layouts.Stagewise(pipelines, placement)
    return layouts.Uniform(pipelines, placement)


# From a layout of a serving plan to the flat fields of its document, and back.
#
# No form is named here: a layout of any form is made of replicas, which fill ``axes``, ``stages``
# and ``serving``, and of parts that have a field of the document each.


def flat_serving(layout: layouts.ServingLayout) -> dict[str, Any]:
    """Return the fields of a document that a layout of a serving plan fills."""
    return _flat_serving(layout, _hints(PlanRecord))


def serving_layout(record: PlanRecord) -> layouts.ServingLayout | None:
    """Return the layout of a document: of the form all of whose parts are there; None where there is none."""
    for form in get_args(layouts.ServingLayout):
        own = _document_fields(form)
        found: layouts.ServingLayout | None = None
        if own and all(getattr(record, name) for name in own):
            found = _built(form, record, own)
        if found is not None:
            return found
    return _replicas(record)


_LAYOUT_OF: Mapping[str, Callable[[PlanRecord], layouts.Layout | None]] = MappingProxyType(
    {"training": _training_layout, "serving": serving_layout}
)
"""What reads the layout of each kind of workload."""


def _flat_serving(record: Any, written: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a record fills where it is written as fields of these types."""
    if isinstance(record, layouts.Replicas):
        return {"axes": record.axes, "stages": record.stages, "serving": record_as(ServingFields, record.load)}
    found: dict[str, Any] = {}
    for each in fields(record):
        value, name = getattr(record, each.name), _name_of(each)
        found |= (
            _flat_serving(value, written) if isinstance(value, layouts.Replicas) else {name: _written(value, written[name])}
        )
    return found


def _written(value: Any, hint: Any) -> Any:
    """A value of a layout as the document has it."""
    record: Any = _record_in(hint)
    if isinstance(value, tuple) and record is not None:
        return tuple(_written(each, record) for each in value)
    if record is None or isinstance(value, record):
        return value
    return record(**_flat_serving(value, _hints(record)))


def _built(form: Any, given: Any, own: Mapping[str, str]) -> Any:
    """A record of a layout from its document; None where replicas are missing."""
    hints, values = _hints(form), {}
    for written, name in own.items():
        values[name] = _read(getattr(given, written), hints[name])
    for each in fields(form):
        if hints[each.name] is layouts.Replicas:
            values[each.name] = _replicas(given)
    return None if any(value is None for value in values.values()) else form(**values)


def _read(value: Any, hint: Any) -> Any:
    """A value of the document as a layout has it."""
    record = _record_in(hint)
    if isinstance(value, tuple) and record is not None:
        return tuple(_read(each, record) for each in value)
    if record is None or type(value) is record:
        return value
    if layouts.Replicas in _hints(record).values():
        return _built(record, value, _document_fields(record))
    return record_as(record, value)


def _replicas(given: Any) -> layouts.Replicas | None:
    """The replicas of a record that has their fields."""
    if given.axes is None or given.serving is None:
        return None
    return layouts.Replicas(given.axes, given.stages, record_as(layouts.EngineLoad, given.serving))


@cache
def _document_fields(form: Any) -> Mapping[str, str]:
    """Names in the document of the fields of a layout, but for replicas, which are flat in it."""
    hints = _hints(form)
    own = {_name_of(each): each.name for each in fields(form) if hints[each.name] is not layouts.Replicas}
    return MappingProxyType({} if form is layouts.Replicas else own)


def _name_of(each: Field[Any]) -> str:
    return str(each.metadata.get("written_as", each.name))


def _record_in(hint: Any) -> Any:
    """The record that a type of a field has in it: itself, of None or it, or of many; None where there is none."""
    inside = [each for each in (hint, *get_args(hint)) if is_dataclass(each)]
    return inside[0] if inside else None


@cache
def _hints(record: Any) -> Mapping[str, Any]:
    return MappingProxyType(get_type_hints(record))
