"""Quantities as people type them: ``24GiB``, ``400Gb/s``, ``1.5s``, ``40ms``, ``102e9``, ``4/s``.

Each kind has one base unit and a table of units. A unit is looked for as it is written, then with letter case aside where that
leaves one: ``gib`` is ``GiB``, but ``gb/s`` may be gigabits or gigabytes and is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.names import did_you_mean

_NUMBER_AND_UNIT = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?|\.[0-9]+)([eE][+-]?[0-9]{1,3}(?![A-Za-z0-9]))?\s*(\D{0,20})")
LONGEST = 64
"""Characters that a quantity may have."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A kind of quantity: its name, what one of each unit is in the base unit, and an example for errors.

    A unit of no letters is a number alone.
    """

    name: str
    units: Mapping[str, float]
    example: str


_METRIC = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_BITS_A_BYTE = 8

DURATION = Quantity(
    "time",
    {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "min": 60.0, "h": 3600.0},
    "1.5s or 40ms",
)
"""Seconds."""

MILLISECONDS = Quantity("time", {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "min": 60e3}, DURATION.example)
"""Milliseconds."""

SIZE = Quantity("size of memory", {f"{p}B": v for p, v in (_METRIC | _BINARY).items()}, "24GiB or 80GB")
"""Bytes."""

BANDWIDTH = Quantity(
    "bandwidth",
    {f"{p}{unit}": v for p, v in (_METRIC | _BINARY).items() for unit in ("B/s", "Bps") if p}
    | {f"{p}{unit}": v / _BITS_A_BYTE for p, v in _METRIC.items() for unit in ("b/s", "bit/s", "bps") if p},
    "400Gb/s (bits) or 50GB/s (bytes)",
)
"""Bytes a second, in one direction."""

NETWORK_CARD = Quantity(
    "speed of a network",
    {**BANDWIDTH.units, **{f"{p}{unit}": _METRIC[p] / _BITS_A_BYTE for p in "MGT" for unit in ("", "b", "bit")}},
    "400Gb/s, 400Gb or 50GB/s",
)
"""Bytes a second of network cards, which are sold in bits: ``400G`` and ``400Gb`` are 400 gigabits a second."""

RATE = Quantity(
    "rate",
    {
        **dict.fromkeys(("", "/s", "rps", "qps", "req/s", "requests/s"), 1.0),
        **dict.fromkeys(("/min", "rpm", "req/min", "requests/min"), 1 / 60),
        **dict.fromkeys(("/h", "req/h", "requests/h"), 1 / 3600),
    },
    "4, 4/s or 240/min",
)
"""Requests or tokens a second."""

COMPUTE = Quantity(
    "speed of arithmetic",
    {f"{p}{unit}": v for p, v in _METRIC.items() for unit in ("FLOPS", "FLOP/s") if p} | {"": 1.0},
    "989TFLOPS or 989e12",
)
"""FLOP a second."""


def read_quantity(text: str, kind: Quantity, *, what: str) -> float:
    """Return the quantity in its kind's base unit; raises InvalidInputError that names what it is for."""
    found = _NUMBER_AND_UNIT.fullmatch(text) if len(text) <= LONGEST else None
    if found is None:
        raise InvalidInputError(f"{what} is no {kind.name}", given=text, allowed=f"a number and a unit, as {kind.example}")
    # In decimal, so that 20us is the number that 20e-6 is.
    value = float(
        Decimal(found[1].replace("_", "") + (found[2] or "")) * Decimal(repr(_unit(found[3].strip(), kind, text, what)))
    )
    if not math.isfinite(value):
        raise InvalidInputError(f"{what} is no finite {kind.name}", given=text, allowed=kind.example)
    return _whole(value)


def read_count(text: str, *, what: str) -> int:
    """Return a whole number from 1, such as ``8192`` or ``8_192``; raises InvalidInputError."""
    word = text.strip()
    if re.fullmatch(r"[1-9][0-9_]{0,18}", word):
        return int(word.replace("_", ""))
    short = re.fullmatch(r"([1-9][0-9]{0,5})\s*[kK]", word)
    remedy = f"write {int(short[1]) * 1024} or {int(short[1]) * 1000}, whichever you mean" if short else None
    raise InvalidInputError(f"{what} is no whole number", given=text, allowed="a whole number from 1, as 8192", remedy=remedy)


def _unit(unit: str, kind: Quantity, text: str, what: str) -> float:
    if unit in kind.units:
        return kind.units[unit]
    values = {value for name, value in kind.units.items() if name.casefold() == unit.casefold()}
    if len(values) == 1:
        return values.pop()
    if not unit:
        raise InvalidInputError(
            f"{what} has no unit", given=text, allowed=kind.example, remedy="write the unit after the number"
        )
    if values:
        remedy = "write a capital B for bytes and a small b for bits"
    else:
        remedy = did_you_mean(unit, filter(None, kind.units), otherwise="write a unit as these")
    raise InvalidInputError(f"{what} has a unit that no {kind.name} has", given=text, allowed=kind.example, remedy=remedy)


def _whole(value: float) -> float:
    """Return a value that is a whole number but for rounding as that number, so that 0.1 GB is 100,000,000 bytes."""
    near = round(value)
    return float(near) if near and abs(value - near) < 1e-9 * abs(near) else value
