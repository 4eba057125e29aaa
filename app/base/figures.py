"""Numbers as a person reads them: three significant digits, a unit, ranges folded."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from rich.table import Table
from rich.text import Text

from meshwright.app.base.console import plain
from meshwright.costmodels.errors import InvalidInputError, did_you_mean
from meshwright.costmodels.units import GIB
from meshwright.solver.answer.predicted import Band, Predicted
from meshwright.solver.answer.stage import Axes, DeviceRange, StageMemory
from meshwright.solver.problem.graph import ModelGraph

MOST_RANGES = 3
"""Ranges of ranks that are all shown."""


def seconds(value: float) -> str:
    """A duration: 17.1 s, 42.0 ms, 3.2 us, 12 min."""
    if value >= 600:
        return f"{value / 60:,.0f} min"
    if value >= 1:
        return f"{significant(value)} s"
    if value >= 1e-3:
        return f"{significant(value * 1e3)} ms"
    return f"{significant(value * 1e6)} us" if value > 0 else "0 s"


def gib(value_bytes: float) -> str:
    """An amount of memory in GiB."""
    return f"{value_bytes / GIB:.1f} GiB"


def amount(value: float, unit: str) -> str:
    """A value in its unit: memory in GiB, durations as ``seconds`` shows them."""
    if unit == "bytes":
        return gib(value)
    return seconds(value) if unit == "s" else f"{significant(value)} {unit}"


def percent(share: float) -> str:
    """A share as a percentage; a small one keeps a digit."""
    if 0 < share < 0.0005:
        return "<0.1%"
    return f"{share:.0%}" if share >= 0.0995 or share <= 0 else f"{share:.1%}"


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number of things: "1 device", "16,384 devices"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def parameters_in_words(model: ModelGraph) -> str:
    """The parameters of a model, and those that a token meets where they differ: "671 B parameters, 37.6 B active"."""
    every, met = model.parameters(), model.active_parameters()
    return f"{_large(every)} parameters" + (f", {_large(met)} active" if met != every else "")


def _large(number: int) -> str:
    """A number of parameters in billions or millions: 8.03 B, 124 M."""
    return f"{significant(number / 1e9)} B" if number >= 1e9 else f"{significant(number / 1e6)} M"


def significant(value: float) -> str:
    """Three significant digits, never in exponent form."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def band(figure: float, around: Band | None) -> str:
    """ " (16.2 to 18.0)" as shares of the figure: "(-5% to +6%)"; nothing without a band."""
    if around is None or figure <= 0:
        return ""
    return f" ({around.low / figure - 1:+.0%} to {around.high / figure - 1:+.0%})"


def axes(degrees: Axes) -> str:
    """Degrees that are not 1, in mesh order; "one device" when all are."""
    cp = "cp" if degrees.ulysses == 1 else f"cp (ulysses {degrees.ulysses})"
    ep = "ep" if degrees.etp is None else "ep (whole experts)"
    named = (("dp", degrees.dp), ("pp", degrees.pp), ("tp", degrees.tp), (cp, degrees.cp), (ep, degrees.ep))
    return " x ".join(f"{name} {degree}" for name, degree in named if degree > 1) or "one device"


def number_range(numbers: Iterable[int]) -> str:
    """``3`` or ``3-7`` for consecutive numbers."""
    ordered = sorted(numbers)
    return str(ordered[0]) if len(ordered) == 1 else f"{ordered[0]}-{ordered[-1]}"


def ranks_of(ranges: Iterable[DeviceRange]) -> str:
    """Ranks in ranges, neighbours joined: "0-15", or of more than three the first two and the last, "0-1, 8-9 ... 56-57"."""
    joined: list[tuple[int, int]] = []
    for each in sorted(ranges, key=lambda part: part.first):
        end = each.first + each.count
        if joined and joined[-1][1] >= each.first:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((each.first, end))
    texts = [number_range({first, end - 1}) for first, end in joined]
    return ", ".join(texts) if len(texts) <= MOST_RANGES else f"{', '.join(texts[:2])} ... {texts[-1]}"


def spread(texts: Iterable[str]) -> str:
    """One text when all are equal, otherwise "first to last" of the sorted ones."""
    distinct = list(dict.fromkeys(texts))
    return distinct[0] if len(distinct) == 1 else f"{distinct[0]} .. {distinct[-1]}"


# Quantities as people type them: ``24GiB``, ``400Gb/s``, ``1.5s``, ``40ms``, ``102e9``, ``4/s``.
#
# Each kind has one base unit and a table of units. A unit is looked for as it is written, then with
# letter case aside where that leaves one: ``gib`` is ``GiB``, but ``gb/s`` may be gigabits or
# gigabytes and is refused.

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

DAYS = Quantity("time", {"d": 1.0, "day": 1.0, "days": 1.0, "h": 1 / 24, "w": 7.0, "week": 7.0, "weeks": 7.0}, "30d or 12h")
"""Days."""

MANY = Quantity("number", {"": 1.0, "M": 1e6, "B": 1e9, "T": 1e12}, "15B or 1T")
"""A count of what comes by the billion, such as tokens of a run."""

MONEY = Quantity("sum in USD", {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9}, "500k or 1.2M")
"""What a run may cost."""

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


_THOUSANDS = re.compile(r"([1-9][0-9]{0,5})\s*[kK]")

MOST_DIGITS = 19
"""Digits of a count, at most: those of the largest that 64 bits hold."""


def read_count(text: str, *, what: str) -> int:
    """Return a whole number from 1, such as ``8192``, ``8_192`` or ``3e9``; raises InvalidInputError."""
    word = text.strip()
    powered = re.fullmatch(r"([1-9][0-9]{0,5})(?:\.([0-9]{1,9}))?[eE]\+?([0-9]{1,2})", word)
    if powered:
        # In digits, as a float of 17 of them is another number.
        whole, part, power = powered[1], (powered[2] or "").rstrip("0"), int(powered[3])
        digits = whole + part + "0" * (power - len(part))
        if power >= len(part) and len(digits) <= MOST_DIGITS:
            return int(digits)
    if re.fullmatch(rf"[1-9][0-9_]{{0,{MOST_DIGITS - 1}}}", word):
        return int(word.replace("_", ""))
    short = _THOUSANDS.fullmatch(word)
    remedy = f"write {int(short[1]) * 1024} or {int(short[1]) * 1000}, whichever you mean" if short else None
    raise InvalidInputError(
        f"{what} is no whole number", given=text, allowed="a whole number from 1, as 8192 or 3e9", remedy=remedy
    )


def read_tokens(text: str, *, what: str) -> int:
    """Return a number of tokens: a whole number, or as ``8k`` the 8,192 that lengths of models and benchmarks mean by it."""
    short = _THOUSANDS.fullmatch(text.strip())
    return int(short[1]) * 1024 if short else read_count(text, what=what)


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


# The memory of a device in words: what fills it.


def memory_kinds(memory: StageMemory) -> tuple[tuple[str, float], ...]:
    """Return what fills the memory of a stage's device."""
    return (
        ("weights", memory.weights_bytes),
        ("gradients", memory.gradients_bytes),
        ("optimizer", memory.optimizer_bytes),
        ("activations", memory.activations_bytes),
        ("KV cache", memory.kv_cache_bytes),
        ("transient", memory.transient_bytes),
        ("fragmentation", memory.fragmentation_bytes),
        ("overhead", memory.overhead_bytes),
    )


# The figures that a plan predicts, in a line.


def speed_in_words(predicted: Predicted, *, devices: int | None = None) -> str:
    """Figures with their bands; the number of devices too where it is given."""
    bands = predicted.bands
    figures = [f"{significant(predicted.tokens_per_s)} tokens/s{band(predicted.tokens_per_s, bands.get('tokens_per_s'))}"]
    if predicted.step_time_s is not None:
        figures.append(f"{seconds(predicted.step_time_s)} a step")
    if predicted.mfu is not None:
        figures.append(f"MFU {percent(predicted.mfu)}")
    if predicted.ttft_p95_s is not None:
        figures.append(f"P95 TTFT {seconds(predicted.ttft_p95_s)}{band(predicted.ttft_p95_s, bands.get('ttft_p95_s'))}")
    if predicted.tpot_p95_s is not None:
        figures.append(f"P95 TPOT {seconds(predicted.tpot_p95_s)}{band(predicted.tpot_p95_s, bands.get('tpot_p95_s'))}")
    if predicted.energy_per_token_j is not None:
        figures.append(f"{significant(predicted.energy_per_token_j)} J a token")
    if devices is not None:
        figures.append(counted(devices, "device"))
    return ", ".join(figures)


# Bars of shares, drawn in characters.

WIDTH = 30


@dataclass(frozen=True, slots=True)
class BarRow:
    """A part of a whole: its name, its amount, and the amount as text."""

    name: str
    amount: float
    shown: str


def bar(share: float, width: int = WIDTH) -> Text:
    """A bar filled to a share (over 1 counts as 1)."""
    filled = round(min(max(share, 0.0), 1.0) * width)
    return plain("█" * filled, style="red" if share > 1 else "cyan") + plain("·" * (width - filled), style="dim")


def parts_table(parts: tuple[BarRow, ...], whole: float) -> Table:
    """One line a part: name, bar, amount and share of the whole. Parts of nothing are left out."""
    table = Table.grid(padding=(0, 1))
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_column(justify="right")
    for part in parts:
        if part.amount > 0 and whole > 0:
            table.add_row(f"  {part.name}", bar(part.amount / whole), part.shown, percent(part.amount / whole))
    return table
