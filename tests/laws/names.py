"""Names change names alone, and the order of keys and of allowed values changes nothing."""

from __future__ import annotations

import copy
import random
from typing import Any

from hypothesis import strategies as st

from meshwright.app.base.records import to_document
from meshwright.app.requests.digests import keyed_request
from meshwright.app.requests.resolve import request_document
from meshwright.solver.answer.document import record_of
from meshwright.solver.answer.plan_record import PlanRecord
from meshwright.solver.problem.request import PlanRequest
from tests.laws.law import Law
from tests.laws.written_out import answer
from tests.support.requests_given import resolved
from tests.support.small_requests import DOCUMENTS


def _document(request: PlanRequest) -> dict[str, Any]:
    """The plan of a request, as its document has it, with what the search looked at left out."""
    document: dict[str, Any] = to_document(PlanRecord, record_of(answer(request)))
    return {name: value for name, value in document.items() if name != "search"}


def _shuffled(value: Any, rng: random.Random, *, is_choice: bool = False) -> Any:
    """A document with its keys in another order, and the allowed values of its search too."""
    if isinstance(value, dict):
        keys = rng.sample(list(value), len(value))
        return {key: _shuffled(value[key], rng, is_choice=is_choice or key == "search") for key in keys}
    if isinstance(value, list):
        return rng.sample(value, len(value)) if is_choice else [_shuffled(each, rng) for each in value]
    return value


def _renamed(written: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """A written-out request with other names of its model, blocks and node groups, and what each was."""
    document = copy.deepcopy(written)
    was: dict[str, str] = {}

    def other(name: str) -> str:
        was[f"z-{name}-a"] = name
        return f"z-{name}-a"

    graph = document["model"]["graph"]
    graph["name"] = other(graph["name"])
    for block in (*graph["blocks"], *graph["chain"]):
        key = "block" if "block" in block else "name"
        block[key] = other(block[key])
    for group in document["cluster"]["groups"]:
        group["name"] = other(group["name"])
    return document, was


def _named_back(value: Any, was: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {_named_back(key, was): _named_back(each, was) for key, each in value.items()}
    if isinstance(value, list):
        return [_named_back(each, was) for each in value]
    if isinstance(value, str):
        for name in sorted(was, key=len, reverse=True):
            value = value.replace(name, was[name])
    return value


def is_the_same(document: dict[str, Any], order: int) -> None:
    request = resolved(document)
    plan = _document(request)
    keys = _shuffled(document | {"search": {}}, random.Random(order)) | {"search": document["search"]}
    assert keyed_request(resolved(keys)).digest == keyed_request(request).digest
    assert _document(resolved(_shuffled(document, random.Random(order)))) == plan
    renamed, was = _renamed(request_document(request))
    assert _named_back(_document(resolved(renamed)), was) == plan


LAW = Law(
    sentence="Names change names alone, and the order of keys and of allowed values changes nothing.",
    drawn={"document": DOCUMENTS, "order": st.integers(0, 999)},
    check=is_the_same,
    few=2,
    many=22,
    most=100,
    draw_s=1.8,
)
