"""Numbers as a person reads them: three significant digits, a unit, ranges folded."""

from __future__ import annotations

from collections.abc import Iterable

from meshwright.costmodels.units import GIB
from meshwright.solver.answer.axes import Axes
from meshwright.solver.answer.predicted import Band
from meshwright.solver.answer.stage import DeviceRange
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
