"""Predicted against measured step times as an SVG, both axes logarithmic, a colour and a form of dot a source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

SIZE, LEFT, BOTTOM, TOP = 560, 64, 48, 16
LEGEND_WIDTH = 200
DOT = 4

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b", "#000000", "#9467bd",
            "#bcbd22", "#17becf")  # fmt: skip
"""Colours that colour-blind readers tell apart come first (Okabe and Ito)."""
_CAPS = ("round", "square")
"""Ends of strokes, which are the forms of dots: when all colours are used, they come again in the next form."""

_BAND = 1.2
"""The plot marks errors of a fifth either way."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one source: (measured, predicted) in seconds."""

    name: str
    points: tuple[tuple[float, float], ...]


def scatter_svg(series: Sequence[Series]) -> str:
    """The plot as an SVG document; of nothing, an empty frame."""
    values = [value for one in series for point in one.points for value in point] or [1.0]
    low, high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values) * 1.0001))
    axes = _Axes(low, max(high, 10 * low))
    width, height = LEFT + SIZE + LEGEND_WIDTH, TOP + SIZE + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *_grid(axes),
        *(_line(axes, factor) for factor in (1 / _BAND, 1.0, _BAND)),
    ]
    for number, one in enumerate(series):
        parts += _series(axes, one, _COLOURS[number % len(_COLOURS)], number)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


@dataclass(frozen=True, slots=True)
class _Axes:
    low: float
    high: float

    def x(self, value: float) -> float:
        return LEFT + SIZE * self._share(value)

    def y(self, value: float) -> float:
        return TOP + SIZE * (1 - self._share(value))

    def decades(self) -> list[float]:
        return [10.0**n for n in range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)]

    def _share(self, value: float) -> float:
        return math.log(value / self.low) / math.log(self.high / self.low)


def _grid(axes: _Axes) -> list[str]:
    parts = []
    for value in axes.decades():
        x, y = axes.x(value), axes.y(value)
        parts.append(f'<path d="M{x:.1f} {TOP}v{SIZE}M{LEFT} {y:.1f}h{SIZE}" stroke="#dddddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP + SIZE + 18}" text-anchor="middle">{value:g}</text>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle = TOP + SIZE / 2
    parts.append(f'<text x="{LEFT + SIZE / 2}" y="{TOP + SIZE + 38}" text-anchor="middle">measured step time, s</text>')
    parts.append(f'<text transform="translate(16 {middle}) rotate(-90)" text-anchor="middle">predicted step time, s</text>')
    return parts


def _line(axes: _Axes, factor: float) -> str:
    """Predicted = factor x measured, cut at the frame."""
    first, last = axes.low * max(1.0, 1 / factor), axes.high * min(1.0, 1 / factor)
    ends = f"M{axes.x(first):.1f} {axes.y(first * factor):.1f}L{axes.x(last):.1f} {axes.y(last * factor):.1f}"
    dashes = "" if factor == 1.0 else ' stroke-dasharray="4 4"'
    return f'<path d="{ends}" stroke="#888888"{dashes}/>'


def _series(axes: _Axes, series: Series, colour: str, number: int) -> list[str]:
    # Dots are strokes of no length, all end: one short path a source.
    dots = "".join(f"M{axes.x(measured):.0f} {axes.y(predicted):.0f}h0" for measured, predicted in series.points)
    y = TOP + 12 + 18 * number
    label = f'<text x="{LEFT + SIZE + 28}" y="{y + 4}">{escape(series.name)} ({len(series.points):,})</text>'
    cap = _CAPS[number // len(_COLOURS) % len(_CAPS)]
    style = f'stroke="{colour}" stroke-linecap="{cap}" fill="none"'
    return [
        f'<path d="{dots}" {style} stroke-width="{DOT}" stroke-opacity="0.6"/>',
        f'<path d="M{LEFT + SIZE + 16} {y}h0" {style} stroke-width="8"/>',
        label,
    ]
