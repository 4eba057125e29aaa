"""The fields of a plan document are those of a plan and of its layout: a field added to one of them is missed in the other."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import pytest

from meshwright.solver.answer.layouts import Pipelines, Placement
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.plan_record import PlanRecord

OF_FORMS = {"serving", "prefill", "switched", "shares", "kinds"}
"""Fields that hold what one form has besides pipelines."""
TYPES = get_type_hints(PlanRecord)


def default_of(record: type, name: str) -> Any:
    (own,) = (each for each in fields(record) if each.name == name)
    return own.default_factory() if own.default_factory is not MISSING else own.default


def test_a_document_has_the_fields_of_a_plan_and_of_its_layout_and_no_other() -> None:
    of_parts = {each.name for part in (Plan, Pipelines, Placement) for each in fields(part)} - {"layout"}
    assert {each.name for each in fields(PlanRecord)} == of_parts | OF_FORMS


@pytest.mark.parametrize("name", [each.name for each in fields(Plan) if each.name != "layout"])
def test_a_field_of_a_plan_is_the_same_in_its_document(name: str) -> None:
    assert TYPES[name] == get_type_hints(Plan)[name]
    assert default_of(PlanRecord, name) == default_of(Plan, name)


@pytest.mark.parametrize(("part", "name"), [(part, each.name) for part in (Pipelines, Placement) for each in fields(part)])
def test_a_field_of_a_layout_may_be_missing_in_a_document_and_is_the_same_else(part: type, name: str) -> None:
    own, default = get_type_hints(part)[name], default_of(PlanRecord, name)
    assert TYPES[name] == (own | None if default is None else own)
    assert default_of(part, name) in (default, MISSING)
    assert not default or default_of(part, name) == default, "a field that is missing says nothing"
