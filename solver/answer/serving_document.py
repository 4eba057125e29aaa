"""From a layout of a serving plan to the flat fields of its document, and back.

No form is named here: a layout of any form is made of replicas, which fill ``axes``, ``stages`` and ``serving``, and of parts
that have a field of the document each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from meshwright.solver.answer import layouts
from meshwright.solver.answer.plan_record import PlanRecord
from meshwright.solver.answer.plan_record import ServingLayout as ServingFields
from meshwright.solver.answer.record_fields import record_as


def flat_serving(layout: layouts.ServingLayout) -> dict[str, Any]:
    """Return the fields of a document that a layout of a serving plan fills."""
    return _flat(layout, _hints(PlanRecord))


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


def _flat(record: Any, written: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a record fills where it is written as fields of these types."""
    if isinstance(record, layouts.Replicas):
        return {"axes": record.axes, "stages": record.stages, "serving": record_as(ServingFields, record.load)}
    found: dict[str, Any] = {}
    for each in fields(record):
        value, name = getattr(record, each.name), _name_of(each)
        found |= _flat(value, written) if isinstance(value, layouts.Replicas) else {name: _written(value, written[name])}
    return found


def _written(value: Any, hint: Any) -> Any:
    """A value of a layout as the document has it."""
    record: Any = _record_in(hint)
    if isinstance(value, tuple) and record is not None:
        return tuple(_written(each, record) for each in value)
    if record is None or isinstance(value, record):
        return value
    return record(**_flat(value, _hints(record)))


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
