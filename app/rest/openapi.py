"""The OpenAPI document in the form that generators of clients take.

Generators build a class for each object, and have no value of one to stand as a default: such a default is said in words.
"""

from __future__ import annotations

import json
from typing import Any


def generated_from(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the document with each default that is an object, or has one in it, moved into the description of its field, and
    with components whose titles, which generators call classes by, are their names."""
    plain = {name: _plain(value) for name, value in schema.items()}
    parts = plain["components"]["schemas"]
    plain["components"]["schemas"] = {name: {**part, "title": name} for name, part in parts.items()}
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    # Examples stay as they are.
    found = {name: each if name in ("example", "examples") else _plain(each) for name, each in value.items()}
    default = found.get("default")
    if isinstance(default, dict) or (isinstance(default, list) and default):
        # The property of an object may be called so: a schema beside it says what it is.
        if not {"$ref", "anyOf", "oneOf", "allOf", "type"} & found.keys():
            return found
        said = f"Default: {json.dumps(default)}"
        before = found.get("description")
        return {name: each for name, each in found.items() if name != "default"} | {
            "description": said if before is None else f"{before}\n\n{said}"
        }
    return found
