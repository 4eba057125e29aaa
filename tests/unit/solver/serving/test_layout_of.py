"""The layout of a plan and its flat fields say the same: each is read from the other, field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args

import pytest

from meshwright.solver.answer.document import plan_of, record_of
from meshwright.solver.answer.layouts import ServingLayout
from meshwright.solver.answer.plan_record import PlanRecord
from tests.unit.solver.serving.layout_of import planned

Path = tuple[str | int, ...]

pytestmark = pytest.mark.usefixtures("short_simulations", "few_batch_limits")


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every place of a record where something stands that is no record and no filled tuple."""
    if is_dataclass(value):
        for each in fields(value):
            yield from leaves(getattr(value, each.name), (*path, each.name))
    elif isinstance(value, tuple) and value:
        for place, each in enumerate(value):
            yield from leaves(each, (*path, place))
    else:
        yield path


def changed(value: Any, path: Path) -> Any:
    """The record with another value at a place."""
    if not path:
        return _other(value)
    step, *rest = path
    if isinstance(step, int):
        return (*value[:step], changed(value[step], tuple(rest)), *value[step + 1 :])
    return replace(value, **{step: changed(getattr(value, step), tuple(rest))})


def _other(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value} changed"
        case Mapping():
            return {**value, "changed": 1}
        case _:
            return 1


@pytest.mark.parametrize("form", get_args(ServingLayout))
def test_every_field_of_a_layout_is_written_and_read(form: type) -> None:
    plan = planned(form)
    layout = plan.layout
    assert isinstance(layout, form)
    assert plan_of(record_of(plan)) == plan
    places = list(leaves(layout))
    assert len(places) > 10
    for place in places:
        other = changed(layout, place)
        assert other != layout, place
        assert plan_of(record_of(replace(plan, layout=other))).layout == other, place


@pytest.mark.parametrize("form", get_args(ServingLayout))
def test_every_flat_field_is_read_and_written(form: type) -> None:
    record: PlanRecord = record_of(planned(form))
    bare = record_of(replace(planned(form), layout=None))
    filled = [each.name for each in fields(record) if getattr(record, each.name) != getattr(bare, each.name)]
    assert filled
    for name in filled:
        for place in leaves(getattr(record, name), (name,)):
            other = changed(record, place)
            plan = plan_of(other)
            assert plan.layout is not None, place
            assert record_of(plan) == other, place
