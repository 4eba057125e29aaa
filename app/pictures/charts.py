"""Charts of figures over figures: lines and points with round numbers at their axes, limits as broken lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from meshwright.app.base.figures import significant
from meshwright.app.base.quoting import html_text
from meshwright.app.pictures.svg import WIDTH, circle, drawing, legend, rectangle, words

_LEFT, _RIGHT, _TOP, _HEIGHT = 90, 40, 28, 260
_INSIDE = WIDTH - _LEFT - _RIGHT
_MARKS = 5
"""Numbers at an axis, about."""
_LINES = ("line", "line second", "line third")
_LOOKS = ("c0", "c1", "c2")


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a chart; ``hint`` is shown under the pointer, ``place`` is where a click leads, if anywhere."""

    x: float
    y: float
    hint: str = ""
    place: str | None = None


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """Points of one name, joined by a line unless ``is_apart``."""

    name: str
    points: tuple[Point, ...]
    is_apart: bool = False


class AxisStart(Enum):
    """The beginning of an axis."""

    ZERO = "at 0"
    NEAR = "near the least value"


@dataclass(frozen=True, slots=True)
class Axis:
    """The words of an axis, how its numbers read, and where it begins."""

    title: str
    text: Callable[[float], str] = significant
    start: AxisStart = AxisStart.ZERO


@dataclass(frozen=True, slots=True)
class Limit:
    """A value of the upright axis that is asked for."""

    value: float
    name: str


def line_chart(title: str, right: Axis, up: Axis, series: Sequence[ChartSeries], limits: Sequence[Limit] = ()) -> str:
    """Return series over each other; of points that are not finite the others are drawn."""
    shown = [(one, [point for point in one.points if math.isfinite(point.x) and math.isfinite(point.y)]) for one in series]
    xs = [point.x for _, points in shown for point in points]
    ys = [point.y for _, points in shown for point in points] + [limit.value for limit in limits]
    left, widest = _ends(right, xs)
    low, highest = _ends(up, ys)
    scale = _Scale(lambda x: (x - left) / (widest - left), lambda y: (y - low) / (highest - low))
    parts = [
        words(_LEFT, 14, f"up: {up.title}; right: {right.title}"),
        *_marks(scale, right, [left + i * (widest - left) / _MARKS for i in range(_MARKS + 1)], is_up=False),
        *_marks(scale, up, [low + i * (highest - low) / _MARKS for i in range(_MARKS + 1)], is_up=True),
    ]
    for limit in limits:
        y = scale.y(limit.value)
        parts.append(f'<path class="line limit" d="M{_LEFT} {y:.1f}h{_INSIDE}"/>')
        parts.append(words(WIDTH - _RIGHT, y - 4, limit.name, end=True))
    for number, (one, points) in enumerate(shown):
        parts += _drawn(scale, one, points, number)
    names = [(_LOOKS[number % len(_LOOKS)], one.name) for number, (one, _) in enumerate(shown) if one.name]
    bottom = _TOP + _HEIGHT + 44
    return drawing(title, bottom + 20 * -(-len(names) // 4), [*parts, *legend(bottom, names)])


def scatter_chart(title: str, right: Axis, up: Axis, points: Sequence[Point]) -> str:
    """Return points over the line of equals, both axes alike and logarithmic; points above 0 alone are drawn."""
    shown = [point for point in points if point.x > 0 and point.y > 0]
    values = [value for point in shown for value in (point.x, point.y)] or [1.0]
    low, high = 0.8 * min(values), 1.25 * max(values)
    span = math.log(high / low)
    scale = _Scale(lambda x: math.log(x / low) / span, lambda y: math.log(y / low) / span)
    marks = [low * (high / low) ** (i / _MARKS) for i in range(_MARKS + 1)]
    equal = f"M{scale.x(low):.1f} {scale.y(low):.1f}L{scale.x(high):.1f} {scale.y(high):.1f}"
    parts = [
        words(_LEFT, 14, f"up: {up.title}; right: {right.title}; the line is where both are equal"),
        *_marks(scale, right, marks, is_up=False),
        *_marks(scale, up, marks, is_up=True),
        f'<path class="line limit" d="{equal}"/>',
        *_drawn(scale, ChartSeries("", (), is_apart=True), shown, 0),
    ]
    return drawing(title, _TOP + _HEIGHT + 30, parts)


@dataclass(frozen=True, slots=True)
class _Scale:
    """The shares of the chart's inside at which values of both axes lie."""

    right: Callable[[float], float]
    up: Callable[[float], float]

    def x(self, value: float) -> float:
        return _LEFT + _INSIDE * self.right(value)

    def y(self, value: float) -> float:
        return _TOP + _HEIGHT * (1 - self.up(value))


def _marks(scale: _Scale, axis: Axis, values: Sequence[float], *, is_up: bool) -> list[str]:
    parts = []
    for value in values:
        if is_up:
            y = scale.y(value)
            parts += [
                f'<path class="grid" d="M{_LEFT} {y:.1f}h{_INSIDE}"/>',
                words(_LEFT - 8, y + 4, axis.text(value), end=True),
            ]
        else:
            x = scale.x(value)
            parts += [
                f'<path class="grid" d="M{x:.1f} {_TOP}v{_HEIGHT}"/>',
                f'<text x="{x:.1f}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{html_text(axis.text(value))}</text>',
            ]
    return parts


def _drawn(scale: _Scale, one: ChartSeries, points: Sequence[Point], number: int) -> list[str]:
    parts = []
    if not one.is_apart and len(points) > 1:
        steps = "L".join(f"{scale.x(point.x):.1f} {scale.y(point.y):.1f}" for point in points)
        parts.append(f'<path class="{_LINES[number % len(_LINES)]}" d="M{steps}"/>')
    for point in points:
        if point.hint:
            dot = circle(scale.x(point.x), scale.y(point.y), look=_LOOKS[number % len(_LOOKS)], hint=point.hint)
            parts.append(dot if point.place is None else f'<a href="{html_text(point.place)}">{dot}</a>')
    return parts


def _ends(axis: Axis, values: Sequence[float]) -> tuple[float, float]:
    """The values at which an axis begins and ends, the second above the first."""
    most = max(values, default=1.0)
    if axis.start is AxisStart.ZERO:
        return 0.0, _round_up(most)
    least = min(values, default=0.0)
    room = 0.1 * (most - least) or 0.1 * abs(most) or 1.0
    return least - room, most + room


def _round_up(value: float) -> float:
    """The next of 1, 2, 2.5, 4, 5, 8 and 10 times a power of ten; 1 of nothing."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 2.5, 4.0, 5.0, 8.0, 10.0, 20.0) if step * power >= value * (1 - 1e-9))


def bar_rows(title: str, rows: Sequence[tuple[str, float, str]]) -> str:
    """Return amounts as bars, one a row: name, amount, and the amount in words."""
    largest = max((amount for _, amount, _ in rows), default=0.0) or 1.0
    parts, left, width = [], 220, WIDTH - 220 - 150
    for number, (name, amount, said) in enumerate(rows):
        y = number * 24
        parts += [words(0, y + 17, name), rectangle(left, y + 3, max(0.5, amount / largest * width), 18, look="c0", hint=said)]
        parts.append(words(WIDTH, y + 17, said, end=True))
    return drawing(title, len(rows) * 24 + 6, parts)
