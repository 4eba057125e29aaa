"""JSON text as Meshwright writes it, whole or from texts of its parts."""

from __future__ import annotations

import json
from collections.abc import Mapping


def compact_json(document: object) -> str:
    """JSON text without spaces, keys in the order given."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def object_text(texts: Mapping[str, str]) -> str:
    """JSON text of an object, from the JSON texts of its fields."""
    return "{" + ",".join(f"{compact_json(name)}:{text}" for name, text in texts.items()) + "}"
