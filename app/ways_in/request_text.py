"""A request document as YAML that a user keeps: a line a field, each with what it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.app.documents.text import parse_document
from meshwright.app.quoting import json_text
from meshwright.costmodels.errors import InvalidInputError

COMMENTS: Mapping[str, str] = {
    "model": "a catalogue name, an id of the Hugging Face Hub, or the path of a config.json",
    "cluster": "devices in words, or node groups: docs/request-format.md",
    "workload": "what runs; more fields, with their defaults: docs/request-format.md",
    "slo": "what must be met by 95% of requests",
    "objective": "what the best plan is best at",
    "search": "the space of plans",
}
"""The comment over each field of a request."""

_PLAIN_START = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_PLAIN = _PLAIN_START | frozenset("/._-")


def request_yaml(document: Mapping[str, Any]) -> str:
    """Return the request as YAML of ours: reading it gives the same document."""
    lines = []
    for name, value in document.items():
        if name in COMMENTS:
            lines.append(f"# {COMMENTS[name]}")
        lines.append(f"{name}: {_value(value)}")
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_value(item)}" for name, item in value.items()) + "}"
    if isinstance(value, str) and _is_plain(value):
        return value
    return json_text(value, indent=None)


def _is_plain(text: str) -> bool:
    """Return True for text that YAML reads as itself without quotes."""
    if not text or text[0] not in _PLAIN_START or not _PLAIN.issuperset(text):
        return False
    try:
        return bool(parse_document(f"text: {text}".encode(), what="text") == {"text": text})
    except InvalidInputError:
        return False
