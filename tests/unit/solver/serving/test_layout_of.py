"""The layout of a plan and its flat fields say the same: each is read from the other, field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, get_args

import pytest

from meshwright.solver.answer.document import plan_of, record_of
from meshwright.solver.answer.layouts import Kinds, Pools, Replicas, ServingLayout
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.plan_record import PlanRecord
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.serving import plan_serving
from tests.unit.solver.serving.requests import cluster, serving_request

Path = tuple[str | int, ...]

pytestmark = pytest.mark.usefixtures("short_simulations", "few_batch_limits")


def request_of(form: type) -> ServingRequest:
    """A request whose best plan has a form."""
    degrees = {"tp": (1, 2), "pp": (1, 2)}
    if form is Replicas:
        return serving_request(search=Search(**degrees))
    if form is Pools:
        return serving_request(
            rate=9.0, ttft_ms=400.0, tpot_ms=12.0, search=Search(**degrees, modes=(ServingMode.DISAGGREGATED,))
        )
    if form is not Kinds:
        search = Search(**degrees, modes=(ServingMode(form.__name__.lower()),))
        return serving_request(rate=0.1, ttft_ms=120_000.0, tpot_ms=None, on=cluster(node="l4-pcie"), search=search)
    old, new = (cluster(node=node, name=name, per_node=2) for node, name in (("dgx-a100", "old"), ("dgx-h100", "new")))
    both = replace(old, groups=(*old.groups, *new.groups))
    return serving_request(rate=24.0, ttft_ms=400.0, tpot_ms=25.0, on=both, search=Search(**degrees, worker_kinds=2))


@cache
def planned(form: type) -> Plan:
    return plan_serving(request_of(form), stop=never_stop, progress=ignore_progress)


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
