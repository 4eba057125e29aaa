"""The reference of the API as one page, made from its OpenAPI document; no script, nothing from another site."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from meshwright.app.base.templates import Code, Hyperlink, Words
from meshwright.app.web.pages.layout import render
from meshwright.app.web.pages.routes import PageRoute

router = APIRouter(route_class=PageRoute, include_in_schema=False)

Schema = Mapping[str, Any]

_CODE = re.compile(r"`{1,2}([^`]+)`{1,2}")

Said = Sequence[str | Code]
"""A description, with code in it."""

METHODS = ("get", "put", "post", "delete")


@router.get("/docs")
def show_reference(request: Request) -> Response:
    """Every endpoint with its parameters, bodies and answers, and every document. Who may ask it is said by the endpoints."""
    found: dict[str, Any] = request.app.openapi()
    tags: dict[str, list[Endpoint]] = {}
    for path, methods in found["paths"].items():
        for method in METHODS:
            if method in methods:
                for tag in methods[method].get("tags", ("other",)):
                    tags.setdefault(tag, []).append(_endpoint(path, method, methods[method]))
    documents = [_document(name, schema) for name, schema in sorted(found["components"]["schemas"].items())]
    return render(request, "api.html", info=found["info"], tags=tags, documents=documents)


@dataclass(frozen=True)
class Endpoint:
    """An endpoint as the page shows it."""

    name: str
    anchor: str
    lines: list[Said]
    parameters: list[tuple[Words, ...]]
    body: Words | None
    answers: list[tuple[Words, ...]]


@dataclass(frozen=True)
class Document:
    """A document as the page shows it: its fields, or what it is where it has none."""

    name: str
    description: Said
    fields: list[tuple[str, Words, Said]]
    type: Words


def _endpoint(path: str, method: str, endpoint: Schema) -> Endpoint:
    body = endpoint.get("requestBody")
    told = "\n".join((endpoint.get("summary") or "", endpoint.get("description") or ""))
    return Endpoint(
        name=f"{method.upper()} {path}",
        anchor=method + "".join(letter if letter.isalnum() else "-" for letter in path),
        lines=[_said(line) for line in told.split("\n") if line.strip()],
        parameters=[
            (
                Code(each["name"]),
                each["in"] + (", required" if each.get("required") else ""),
                _type(each.get("schema", {})),
                each.get("description") or each.get("schema", {}).get("description") or "",
            )
            for each in endpoint.get("parameters", ())
        ],
        body=None if body is None else (_of_content(body), " ", body.get("description") or ""),
        answers=[
            (status, answer.get("description", ""), _of_content(answer))
            for status, answer in sorted(endpoint.get("responses", {}).items())
        ],
    )


def _of_content(holder: Schema) -> Words:
    kinds = ((media, " ", _type(content.get("schema", {}))) for media, content in holder.get("content", {}).items())
    return _joined(", ", kinds)


def _document(name: str, schema: Schema) -> Document:
    needed = set(schema.get("required", ()))
    fields: list[tuple[str, Words, Said]] = [
        (field, ("required, " if field in needed else "", _type(of_field)), _said(of_field.get("description", "")))
        for field, of_field in schema.get("properties", {}).items()
    ]
    return Document(name, _said(schema.get("description", "")), fields, "" if "properties" in schema else _type(schema))


def _type(schema: Schema) -> Words:
    """The type of a value; other documents are links."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return Hyperlink(f"#{name}", name)
    for joined in ("anyOf", "oneOf", "allOf"):
        if joined in schema:
            return _joined(" or ", dict.fromkeys(_type(each) for each in schema[joined]))
    if "const" in schema:
        return Code(str(schema["const"]))
    if "enum" in schema:
        return _joined(" | ", (Code(str(value)) for value in schema["enum"]))
    kind = str(schema.get("type", "any"))
    if kind == "array":
        items = schema.get("items")
        return ("list of ", _type(items)) if isinstance(items, Mapping) else "list"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return "object of ", _type(schema["additionalProperties"])
    limits = [
        f"{sign} {schema[name]:g}"
        for name, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
        if isinstance(schema.get(name), int | float)
    ]
    return " ".join([kind, *limits])


def _joined(between: str, words: Iterable[Words]) -> Words:
    return tuple(part for each in words for part in (between, each))[1:]


def _said(text: str) -> Said:
    """A description, what stands in grave accents as code."""
    parts = _CODE.split(text)
    return tuple(Code(part) if number % 2 else part for number, part in enumerate(parts) if part)
