"""The reference of the API as one page, made from its OpenAPI document; no script, nothing from another site."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from meshwright.app.base.quoting import html_lines, html_text
from meshwright.app.pictures.page import plain_table
from meshwright.app.web.pages.layout import page
from meshwright.app.web.pages.routes import COOKIE, PageRoute

router = APIRouter(route_class=PageRoute, include_in_schema=False)

Schema = Mapping[str, Any]

_CODE = re.compile(r"`{1,2}([^`]+)`{1,2}")

METHODS = ("get", "put", "post", "delete")


@router.get("/docs")
def show_reference(request: Request) -> Response:
    """Every endpoint with its parameters, bodies and answers, and every document. Who may ask it is said by the endpoints."""
    found: dict[str, Any] = request.app.openapi()
    endpoints = [
        (path, method, methods[method]) for path, methods in found["paths"].items() for method in METHODS if method in methods
    ]
    tags = dict.fromkeys(tag for _, _, endpoint in endpoints for tag in endpoint.get("tags", ("other",)))
    documents = found["components"]["schemas"]
    body = (
        f"<h1>{html_text(found['info']['title'])} API, version {html_text(found['info']['version'])}</h1>"
        "<p>A key of <code>meshwright keys create</code> goes in the header <code>Authorization: Bearer</code>. "
        '<a href="/openapi.json">The OpenAPI document</a> holds all of this for generators of clients. '
        'Errors are <a href="#ProblemDocument">problem documents</a> (RFC 9457).</p>'
        f'<ul>{"".join(_contents(tag, endpoints) for tag in tags)}<li><a href="#documents">Documents</a></li></ul>'
        + "".join(_tag(tag, endpoints) for tag in tags)
        + '<h2 id="documents">Documents</h2>'
        + "".join(_document(name, schema) for name, schema in sorted(documents.items()))
    )
    return page("API", body, signed_in=COOKIE in request.cookies)


Endpoint = tuple[str, str, Schema]


def _contents(tag: str, endpoints: Iterable[Endpoint]) -> str:
    links = ", ".join(
        f'<a href="#{_anchor(path, method)}">{method.upper()} {html_text(path)}</a>'
        for path, method, endpoint in endpoints
        if tag in endpoint.get("tags", ("other",))
    )
    return f"<li>{html_text(tag)}: {links}</li>"


def _tag(tag: str, endpoints: Iterable[Endpoint]) -> str:
    of_tag = "".join(_endpoint(*each) for each in endpoints if tag in each[2].get("tags", ("other",)))
    return f"<h2>{html_text(tag.capitalize())}</h2>{of_tag}"


def _endpoint(path: str, method: str, endpoint: Schema) -> str:
    parts = [f'<h3 id="{_anchor(path, method)}"><code>{method.upper()} {html_text(path)}</code></h3>']
    for words in (endpoint.get("summary"), endpoint.get("description")):
        parts += [f"<p>{_words(line)}</p>" for line in (words or "").split("\n") if line.strip()]
    given = endpoint.get("parameters", ())
    if given:
        rows = [
            (
                f"<code>{html_text(each['name'])}</code>",
                html_text(each["in"]) + (", required" if each.get("required") else ""),
                _type(each.get("schema", {})),
                html_text(each.get("description") or each.get("schema", {}).get("description") or ""),
            )
            for each in given
        ]
        parts.append(plain_table(f"Parameters of {method.upper()} {path}", ("parameter", "in", "type", "meaning"), rows))
    body = endpoint.get("requestBody")
    if body is not None:
        said = body.get("description") or ""
        parts.append(f"<p>Body: {_of_content(body)} {html_text(said)}</p>")
    answers = [
        (html_text(status), html_text(answer.get("description", "")), _of_content(answer))
        for status, answer in sorted(endpoint.get("responses", {}).items())
    ]
    parts.append(plain_table(f"Answers of {method.upper()} {path}", ("status", "when", "body"), answers))
    return "".join(parts)


def _of_content(holder: Schema) -> str:
    kinds = [
        f"{html_text(media)} {_type(content.get('schema', {}))}".strip() for media, content in holder.get("content", {}).items()
    ]
    return ", ".join(kinds)


def _document(name: str, schema: Schema) -> str:
    parts = [f'<h3 id="{html_text(name)}">{html_text(name)}</h3>']
    if schema.get("description"):
        parts.append(f'<p class="lines">{_words(schema["description"])}</p>')
    fields = schema.get("properties")
    if fields:
        needed = set(schema.get("required", ()))
        rows = [
            (
                f"<code>{html_text(field)}</code>",
                ("required, " if field in needed else "") + _type(of_field),
                _words(of_field.get("description", "")),
            )
            for field, of_field in fields.items()
        ]
        parts.append(plain_table(name, ("field", "type", "meaning"), rows))
    elif "properties" not in schema:
        parts.append(f"<p>{_type(schema)}</p>")
    return "".join(parts)


def _type(schema: Schema) -> str:
    """The type of a value, as HTML; other documents are links."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return f'<a href="#{html_text(name)}">{html_text(name)}</a>'
    for joined in ("anyOf", "oneOf", "allOf"):
        if joined in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[joined]))
    if "const" in schema:
        return f"<code>{html_text(str(schema['const']))}</code>"
    if "enum" in schema:
        return " | ".join(f"<code>{html_text(str(value))}</code>" for value in schema["enum"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        items = schema.get("items")
        return f"list of {_type(items)}" if isinstance(items, Mapping) else "list"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_type(schema['additionalProperties'])}"
    limits = [
        f"{sign} {schema[name]:g}"
        for name, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
        if isinstance(schema.get(name), int | float)
    ]
    return html_text(" ".join([kind, *limits]))


def _words(text: str) -> str:
    """Lines of a description, what stands in grave accents as code."""
    return _CODE.sub(r"<code>\1</code>", html_lines(text))


def _anchor(path: str, method: str) -> str:
    letters = "".join(letter if letter.isalnum() else "-" for letter in path)
    return f"{method}{letters}"
