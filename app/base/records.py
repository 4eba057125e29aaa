"""Strict reading of a parsed document into a record, with errors that name the field, the value and what is allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from meshwright.app.base.digits import is_digits
from meshwright.app.base.errors import DocumentError, FieldError, at_field, field_error, join_path, short_text
from meshwright.costmodels.errors import InvalidInputError, did_you_mean, nearest_name

Record = TypeVar("Record")

MAX_FAULTS = 20
"""Faults that an error lists; a document with more is usually wrong in one way many times."""

EXTRA_FIELD = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_QUOTED = re.compile("'([^']*)'")
"""A value in Pydantic's list of those that it expects."""
MISSING_FIELD = frozenset({"missing", "missing_argument", "missing_keyword_only_argument"})


def read_record(kind: type[Record], document: object, *, what: str) -> Record:
    """The document as a record of that kind; raises DocumentError with every fault, each at its dotted path.

    The document holds what JSON can hold. It goes through JSON text because Pydantic reads strictly *and* accepts lists
    for tuples and strings for enums only there.
    """
    try:
        record: Record = _adapter(kind).validate_json(json.dumps(document, allow_nan=False))
    except ValidationError as error:
        raise DocumentError(f"this {what} can't be used", _faults(error, document, _schema(kind))) from None
    return record


def to_document(kind: type[Record], record: Record) -> dict[str, Any]:
    """The record as a document, every default written out."""
    document: dict[str, Any] = _adapter(kind).dump_python(record, mode="json")
    return document


_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """The kind's reader; building one takes milliseconds, so each is built once."""
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


_schemas: dict[Any, Mapping[str, Any]] = {}


def _schema(kind: Any) -> Mapping[str, Any]:
    """The kind's JSON Schema; making one takes tens of milliseconds, which a faulty document must not cost each time."""
    if kind not in _schemas:
        _schemas[kind] = _adapter(kind).json_schema()
    return _schemas[kind]


def _faults(error: ValidationError, document: object, schema: Mapping[str, Any]) -> tuple[FieldError, ...]:
    details = error.errors(include_url=False)
    placed = [(_path_in(document, detail), detail) for detail in details[: 50 * MAX_FAULTS]]
    faults: list[FieldError] = []
    for path, detail in _without_wrong_branches(placed):
        faults += _fault(path, detail, schema)
    more = len(faults) - MAX_FAULTS
    if more > 0:
        faults = [*faults[:MAX_FAULTS], FieldError("", f"and {more} more faults")]
    return tuple(faults)


def _fault(path: tuple[str, ...], detail: ErrorDetails, schema: Mapping[str, Any]) -> tuple[FieldError, ...]:
    """The fault in our words; a fault raised by one of our own records keeps its own."""
    field = ".".join(path)
    kind, context = detail["type"], detail.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, DocumentError):
        return at_field(cause, field).fields
    if isinstance(cause, InvalidInputError):
        return (field_error(cause, field),)
    if kind in EXTRA_FIELD:
        known = _fields_at(schema, path[:-1])
        return (
            FieldError(
                field,
                "unknown field",
                given=short_text(path[-1]),
                allowed=", ".join(known) or None,
                remedy=_nearest(path[-1], known),
            ),
        )
    if kind in MISSING_FIELD:
        return (FieldError(field, "field is missing", remedy=f"add {_only_value(schema, path) or repr(path[-1])}"),)
    given = short_text(detail["input"])
    if kind in ("enum", "literal_error") and isinstance(detail["input"], str):
        near = nearest_name(detail["input"], _QUOTED.findall(str(context["expected"])))
        remedy = None if near is None else f"did you mean {near!r}?"
        return (FieldError(field, "value can't be used", given=given, allowed=_allowed(detail), remedy=remedy),)
    if not path:
        return (FieldError("", "the document can't be used", given=given, allowed=_allowed(detail)),)
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        tag = str(context["discriminator"]).strip("'")
        choices = context.get("expected_tags") or ", ".join(_choices_of(schema, path))
        given_tag = repr(context["tag"]) if "tag" in context else None
        return (FieldError(join_path(field, tag), "names no known kind", given=given_tag, allowed=choices or None),)
    return (FieldError(field, "value can't be used", given=given, allowed=_allowed(detail)),)


def _allowed(detail: ErrorDetails) -> str:
    """Return the values that Pydantic would have taken, without its "Input should be"."""
    return detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")


def _path_in(document: object, detail: ErrorDetails) -> tuple[str, ...]:
    """The fault's path through the document: Pydantic's location without the names of union branches."""
    path: list[str] = []
    here: Any = document
    for part in detail["loc"]:
        if _leads_on(here, part):
            here = here[part]
        elif not (detail["type"] in MISSING_FIELD and part == detail["loc"][-1]):
            continue
        path.append(str(part))
    return tuple(path)


def _leads_on(value: object, part: int | str) -> bool:
    """Return True if a value has something at this part of a path."""
    if isinstance(value, dict):
        return part in value
    return isinstance(value, list) and isinstance(part, int) and part < len(value)


def _without_wrong_branches(
    placed: Iterable[tuple[tuple[str, ...], ErrorDetails]],
) -> list[tuple[tuple[str, ...], ErrorDetails]]:
    """Faults without those of union branches that were not meant.

    A union without a tag reports the faults of every branch. The one that was meant is the one with the fewest.
    """
    branches: dict[tuple[str, ...], dict[str, int]] = {}
    keyed = []
    for path, detail in placed:
        branch = _first_branch(path, detail)
        keyed.append((path, detail, branch))
        if branch is not None:
            counts = branches.setdefault(branch[0], {})
            counts[branch[1]] = counts.get(branch[1], 0) + 1
    meant = {where: min(counts, key=counts.__getitem__) for where, counts in branches.items()}
    return [(path, detail) for path, detail, branch in keyed if branch is None or meant[branch[0]] == branch[1]]


def _first_branch(path: tuple[str, ...], detail: ErrorDetails) -> tuple[tuple[str, ...], str] | None:
    """(path of the union, name of the branch) of the last union on the way to a fault, if there is one."""
    location = [str(part) for part in detail["loc"]]
    found = None
    depth = 0
    for i, part in enumerate(location):
        if depth < len(path) and part == path[depth]:
            depth += 1
        else:
            found = (tuple(location[:i]), part)
    return found


def _nearest(name: str, known: Sequence[str]) -> str:
    return did_you_mean(name, known, otherwise="remove it")


def _fields_at(schema: Mapping[str, Any], path: Sequence[str]) -> list[str]:
    """Fields that the schema knows at a path, over all branches."""
    names = [name for node in _nodes_at(schema, path) for name in node.get("properties", {})]
    return list(dict.fromkeys(names))


def _only_value(schema: Mapping[str, Any], path: Sequence[str]) -> str | None:
    """Return a field with its value, quoted, where the schema knows one value only."""
    values = {node["const"] for node in _nodes_at(schema, path) if isinstance(node.get("const"), str)}
    return repr(f"{path[-1]}: {values.pop()}") if len(values) == 1 else None


def _choices_of(schema: Mapping[str, Any], path: Sequence[str]) -> list[str]:
    return [tag for node in _nodes_at(schema, path) for tag in node.get("discriminator", {}).get("mapping", {})]


def _nodes_at(schema: Mapping[str, Any], path: Sequence[str]) -> list[Mapping[str, Any]]:
    nodes = _branches(schema, schema)
    for part in path:
        inner: list[Mapping[str, Any]] = []
        for node in nodes:
            step = node.get("properties", {}).get(part) or (node.get("items") if is_digits(part) else None)
            if step:
                inner += _branches(schema, step)
        nodes = inner
    return nodes


def _branches(schema: Mapping[str, Any], node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The schema node itself, references followed, and every branch of a union under it."""
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    found = [node]
    for branch in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        found += _branches(schema, branch)
    return found
