"""Numbers that a request gives as text with a unit: ``p95_ttft_ms: 1s``, ``memory_bytes: 24GiB``, ``bytes_per_s: 400Gb/s``.

The end of a field's name says what it holds, so every field that ends so takes text.
"""

from __future__ import annotations

import re
from typing import Any

from meshwright.app.errors import DocumentError, FieldError, field_error, join_path
from meshwright.app.text.quantities import (
    BANDWIDTH,
    COMPUTE,
    DURATION,
    MILLISECONDS,
    RATE,
    SIZE,
    Quantity,
    read_quantity,
)
from meshwright.costmodels.errors import InvalidInputError

SECTIONS = ("cluster", "workload", "slo", "search")
"""Fields of a request whose numbers may have units; models are written by programs."""

_ENDINGS = (
    ("bytes_per_s", BANDWIDTH),
    ("_per_s", RATE),
    ("_bytes", SIZE),
    ("_ms", MILLISECONDS),
    ("_s", DURATION),
)
TEXTS = "sources"
"""The field of devices and nodes that holds texts by the names of other fields."""

_FORMATS_OF_FLOPS = "peak_flops"
_BARE_NUMBER = re.compile(r"[\s0-9.eE+_-]*")


def quantity_of_field(name: str) -> Quantity | None:
    """Return the kind of quantity that a field of this name holds; None where it is no quantity with a unit."""
    return next((kind for ending, kind in _ENDINGS if name.endswith(ending)), None)


def without_units(document: object) -> object:
    """Return the request with its texts of numbers and units as numbers; raises DocumentError with every fault.

    A number in quotes without a unit stays as it is, to be refused by its field.
    """
    if not isinstance(document, dict):
        return document
    faults: list[FieldError] = []
    changed = {name: _value(document[name], name, None, faults) for name in SECTIONS if name in document}
    if faults:
        raise DocumentError("this request can't be used", tuple(faults))
    return document | changed


def _value(value: Any, path: str, kind: Quantity | None, faults: list[FieldError]) -> Any:
    if isinstance(value, dict):
        of_formats = COMPUTE if path.endswith(_FORMATS_OF_FLOPS) else None
        return {
            name: item
            if name == TEXTS
            else _value(item, join_path(path, str(name)), of_formats or quantity_of_field(str(name)), faults)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_value(item, f"{path}.{index}", None, faults) for index, item in enumerate(value)]
    if not isinstance(value, str) or kind is None or _BARE_NUMBER.fullmatch(value):
        return value
    try:
        number = read_quantity(value, kind, what="the value")
    except InvalidInputError as error:
        faults.append(field_error(error, path))
        return value
    return int(number) if number.is_integer() else number
