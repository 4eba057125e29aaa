"""Fields of a request set one by one, by their dotted paths, as a command line changes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.app.base.digits import is_digits
from meshwright.app.base.documents import MAX_DEPTH, parse_document
from meshwright.app.requests.one_line import yaml_value
from meshwright.app.requests.resolve import NoFiles, request_document, resolve_request
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.problem.request import PlanRequest

EXAMPLE = "search.risk=0.1"


def changed_request(request: PlanRequest, changes: Sequence[str]) -> PlanRequest:
    """Return the request with ``changes``, each a dotted path of its resolved document, "=" and a value in YAML; the last of a
    path counts. Raises InvalidInputError for what can't be a path or a value, DocumentError for what the request can't have."""
    if not changes:
        return request
    document: Any = request_document(request)
    for change in changes:
        path, is_set, text = change.partition("=")
        if not is_set or not all(path.split(".")):
            raise InvalidInputError("a change is a path and a value", given=change, allowed=f"such as {EXAMPLE}")
        # After a marker of YAML a list may hold plain words.
        set_field(document, path, parse_document(b"--- " + text.encode(), what=f"the value of {path}"))
    return resolve_request(document, files=NoFiles())


def as_changes(values: Mapping[str, str]) -> tuple[str, ...]:
    """Return values of fields, as JSON by dotted path, in the form that `changed_request` takes."""
    return tuple(f"{path}={yaml_value(json.loads(value))}" for path, value in values.items())


def set_field(document: Any, path: str, value: Any) -> None:
    """Set the field at a dotted path of a parsed document, whose missing parts become objects; numbers are places in lists.

    Raises InvalidInputError for an entry that a list lacks, and for a part of what has none.
    """
    *names, last = path.split(".", MAX_DEPTH)
    for name in names:
        document = _member(document, name, path)
    if isinstance(document, list):
        document[_index(document, last, path)] = value
    elif isinstance(document, dict):
        document[last] = value
    else:
        raise _no_such(path, last)


def _member(document: Any, name: str, path: str) -> Any:
    if isinstance(document, list):
        return document[_index(document, name, path)]
    if not isinstance(document, dict):
        raise _no_such(path, name)
    if document.get(name) is None:
        document[name] = {}
    return document[name]


def _index(items: Sequence[Any], name: str, path: str) -> int:
    if not (is_digits(name, most=9) and int(name) < len(items)):
        raise InvalidInputError(
            f"no such entry of a list in {path}", given=name, allowed=f"0 to {len(items) - 1}" if items else "none: it is empty"
        )
    return int(name)


def _no_such(path: str, name: str) -> InvalidInputError:
    said = "a change is of a field, and a value has no fields"
    return InvalidInputError(said, given=f"{name} in {path}", allowed=f"a path such as {EXAMPLE}")
