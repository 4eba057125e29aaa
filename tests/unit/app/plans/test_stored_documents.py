"""Documents of plans of every form, stored by versions before plans had layouts, are read and written as they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from meshwright.app.requests.plan_documents import plan_document, read_plan
from meshwright.costmodels.errors import PlanFileError
from meshwright.solver.answer.document import plan_of, record_of
from meshwright.solver.answer.layouts import ServingLayout, TrainingLayout
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.plan_record import PlanRecord

STORED = {path.stem: path.read_text(encoding="utf-8") for path in sorted((Path(__file__).parent / "stored").glob("*.json"))}
FORMS = {
    "by_group": "ByGroup",
    "kinds": "Kinds",
    "no_serving_plan": "NoneType",
    "no_training_plan": "NoneType",
    "pools": "Pools",
    "replicas": "Replicas",
    "stagewise": "Stagewise",
    "switched": "Switched",
    "uniform": "Uniform",
}
"""Forms of the plans of the stored documents."""


def stored(name: str) -> Plan:
    return read_plan(json.loads(STORED[name]))


def test_there_is_a_stored_document_of_every_form() -> None:
    forms = {form.__name__ for form in (*get_args(TrainingLayout), *get_args(ServingLayout))}
    assert {FORMS[name] for name in STORED} == forms | {"NoneType"}


@pytest.mark.parametrize("name", STORED)
def test_stored_documents_are_read_and_written_byte_for_byte(name: str) -> None:
    plan = stored(name)
    assert type(plan.layout).__name__ == FORMS[name]
    assert json.dumps(plan_document(plan), indent=1) + "\n" == STORED[name]


ADDED = (
    "rank_order",
    "operator_solvers",
    "peak_memory_p95_bytes",
    "chance_out_of_memory",
    "learned_bytes",
    "equals",
    "suggestions",
    "ttft_promised_s",
    "tpot_promised_s",
    "chance_ttft_missed",
    "chance_tpot_missed",
)
"""Fields that documents of earlier versions do not have."""


def without(document: Any, names: tuple[str, ...]) -> Any:
    if isinstance(document, dict):
        return {name: without(value, names) for name, value in document.items() if name not in names}
    return [without(value, names) for value in document] if isinstance(document, list) else document


@pytest.mark.parametrize("name", STORED)
def test_documents_of_earlier_versions_are_read(name: str) -> None:
    assert read_plan(without(json.loads(STORED[name]), ADDED)) == stored(name)


@pytest.mark.parametrize("name", STORED)
def test_a_plan_is_the_same_after_it_was_a_document(name: str) -> None:
    plan = stored(name)
    assert plan_of(record_of(plan)) == plan


def records_with_one_field_more_or_less() -> Iterator[tuple[str, str, PlanRecord]]:
    """Stored plans with each field of a layout left out that has a value, and each field that another form has."""
    plain = PlanRecord(**{each.name: None for each in fields(PlanRecord) if each.name in REQUIRED})  # type: ignore[arg-type]
    records = {name: record_of(stored(name)) for name in STORED}
    for name, record in records.items():
        for field in (each.name for each in fields(PlanRecord) if each.name not in {own.name for own in fields(Plan)}):
            usual = getattr(plain, field)
            values = [usual, *(getattr(other, field) for other in records.values())]
            for value in values:
                if value != getattr(record, field) and (value == usual) != (getattr(record, field) == usual):
                    yield name, field, replace(record, **{field: value})
                    break


REQUIRED = frozenset({"kind", "feasible", "certificate", "devices", "search", "calibration"})


def test_no_field_of_a_document_is_lost() -> None:
    refused = 0
    for name, field, record in records_with_one_field_more_or_less():
        try:
            plan = plan_of(record)
        except PlanFileError:
            refused += 1
        else:
            assert record_of(plan) == record, (name, field)
    assert refused > 50


@pytest.mark.parametrize(
    ("name", "field"),
    [("uniform", "microbatch"), ("uniform", "stages"), ("replicas", "serving"), ("switched", "axes"), ("pools", "serving")],
)
def test_a_document_without_a_part_of_its_form_is_refused(name: str, field: str) -> None:
    empty = [] if field == "stages" else None
    with pytest.raises(PlanFileError, match="fields of one form, and all of them"):
        read_plan(json.loads(STORED[name]) | {field: empty})


@pytest.mark.parametrize(
    ("name", "other", "field"),
    [
        ("pools", "switched", "switched"),
        ("kinds", "replicas", "serving"),
        ("kinds", "pools", "prefill"),
        ("uniform", "replicas", "serving"),
        ("replicas", "by_group", "shares"),
        ("no_serving_plan", "replicas", "axes"),
    ],
)
def test_a_document_with_fields_of_two_forms_is_refused(name: str, other: str, field: str) -> None:
    with pytest.raises(PlanFileError, match=f"given: '{field} in a"):
        read_plan(json.loads(STORED[name]) | {field: json.loads(STORED[other])[field]})
