"""The plan document: a plan and, under ``request``, the resolved request it answers.

The document is self-contained: exporting, checking and predicting again need nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from app.errors import at_field
from app.requests.limits import Entry
from app.requests.resolve import NoFiles, resolve_request
from app.requests.validation import read_record, to_document
from costmodels.errors import InvalidInputError, PlanFileError
from solver.plan import PLAN_SCHEMA, AnsweredRequest, Plan

REQUEST_FIELD = "request"
_FIRST_FIELDS = ("schema", "digest", "kind", "model", "feasible", "reason", "certificate", "predicted", "devices", "axes")


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as a document, what a reader looks for first coming first; without its request."""
    fields = to_document(Plan, plan)
    return {name: fields.pop(name) for name in _FIRST_FIELDS} | fields


def join_texts(plan_text: str, request_text: str) -> str:
    """JSON text of the plan document, from the JSON texts of the plan and of its request, neither of them parsed."""
    return f'{plan_text[:-1]},"{REQUEST_FIELD}":{request_text}}}'


def object_text(texts: Mapping[str, str]) -> str:
    """JSON text of an object, from the JSON texts of its fields."""
    return "{" + ",".join(f"{compact_json(name)}:{text}" for name, text in texts.items()) + "}"


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
    """The plan of a parsed plan document, whose request is not looked at; raises DocumentError."""
    if isinstance(document, dict):
        document = {name: value for name, value in document.items() if name != REQUEST_FIELD}
    return read_record(Plan, document, what="plan")


def compact_json(document: object) -> str:
    """JSON text without spaces, keys in the order given."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
