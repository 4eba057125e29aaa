"""The plan document: a plan and, under ``request``, the resolved request it answers.

The document is self-contained: exporting, checking and predicting again need nothing else. Its stages, and the intervals of a
simulation document, are rows of tables, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.app.base.errors import at_field
from meshwright.app.base.records import read_record, to_document
from meshwright.app.requests.limits import Entry
from meshwright.app.requests.resolve import NoFiles, request_document, resolve_request
from meshwright.costmodels.errors import InvalidInputError, PlanFileError
from meshwright.solver.answer.document import plan_of, record_of
from meshwright.solver.answer.plan import PLAN_SCHEMA, AnsweredRequest, Plan
from meshwright.solver.answer.plan_record import PlanRecord
from meshwright.solver.problem.carried_choices import UNSAID

REQUEST_FIELD = "request"
_FIRST_FIELDS = ("schema", "digest", "kind", "model", "feasible", "reason", "certificate", "predicted", "devices", "axes")


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as a document, what a reader looks for first coming first; without its request."""
    fields: dict[str, Any] = _without_unsaid(to_document(PlanRecord, record_of(plan)))
    return {name: fields.pop(name) for name in _FIRST_FIELDS} | fields


def _without_unsaid(value: Any) -> Any:
    """The document without later fields that say nothing."""
    if isinstance(value, dict):
        said = {name: each for name, each in value.items() if name not in UNSAID or each != UNSAID[name]}
        return {name: _without_unsaid(each) for name, each in said.items()}
    return [_without_unsaid(each) for each in value] if isinstance(value, list) else value


def answer_document(answered: AnsweredRequest) -> dict[str, Any]:
    """Return the whole plan document: the plan and the request that it answers."""
    return plan_document(answered.plan) | {REQUEST_FIELD: request_document(answered.request)}


def join_texts(plan_text: str, request_text: str) -> str:
    """JSON text of the plan document, from the JSON texts of the plan and of its request, neither of them parsed."""
    return f'{plan_text[:-1]},"{REQUEST_FIELD}":{request_text}}}'


def read_plan_document(document: object) -> AnsweredRequest:
    """The plan and request of a parsed plan document; raises PlanFileError or DocumentError."""
    if not isinstance(document, dict) or document.get("schema") != PLAN_SCHEMA:
        given = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise PlanFileError("this is no plan document", given=given, allowed=f"schema: {PLAN_SCHEMA}")
    if REQUEST_FIELD not in document:
        raise PlanFileError("the plan document has no 'request'", remedy="write plan files with 'meshwright plan -o FILE'")
    plan = read_plan(document)
    try:
        request = resolve_request(document[REQUEST_FIELD], files=NoFiles(), entry=Entry.STORED)
    except InvalidInputError as error:
        raise at_field(error, REQUEST_FIELD) from None
    return AnsweredRequest(plan, request)


def read_plan(document: object) -> Plan:
    """The plan of a parsed plan document, whose request is not looked at; raises PlanFileError or DocumentError."""
    if isinstance(document, dict):
        document = {name: value for name, value in document.items() if name != REQUEST_FIELD}
    return plan_of(read_record(PlanRecord, document, what="plan"))


def stage_rows(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The stages of every part of a plan document. A part is named by its role, node group or number; the plan's own has
    none."""
    parts: list[tuple[str, Mapping[str, Any]]] = [("", document)]
    parts += [(role, document[role]) for role in ("prefill", "switched") if document[role] is not None]
    parts += [(pool["group"], pool) for pool in (document["shares"] or {"pools": []})["pools"]]
    parts += [(f"kind {number}", kind) for number, kind in enumerate(document["kinds"])]
    several = len([1 for _, part in parts if part["stages"]]) > 1 or bool(document["kinds"])
    for part, holder in parts:
        for number, stage in enumerate(holder["stages"]):
            yield ({"part": part} if several else {}) | {"stage": number} | stage


def interval_rows(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The intervals of a simulation document: the end of each, requests that wait and decode, and the share of time that is
    busy; ``kind`` names the kind of workers, where there are several."""
    kinds = document.get("kinds")
    if kinds is None:
        yield from _intervals(document["timeline"])
        return
    for kind in kinds:
        yield from ({"kind": kind["name"]} | row for row in _intervals(kind["timeline"]))


def flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a row without nested mappings: {"a": {"b": 1}} has the column "a.b"."""
    columns: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            columns |= flat(value, f"{prefix}{name}.")
        else:
            columns[f"{prefix}{name}"] = value
    return columns


def _intervals(timeline: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    if timeline is None:
        return []
    columns = zip(timeline["waiting"], timeline["decoding"], timeline["busy"], strict=True)
    return [
        {"end_s": (index + 1) * timeline["interval_s"], "waiting": waiting, "decoding": decoding, "busy": busy}
        for index, (waiting, decoding, busy) in enumerate(columns)
    ]
