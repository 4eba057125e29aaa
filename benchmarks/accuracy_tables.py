"""The validation report as a Markdown page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from meshwright.app.base.figures import counted, percent
from meshwright.app.base.quoting import markdown_code, markdown_text
from meshwright.app.evidence.training.report import Report
from meshwright.app.evidence.training.rows import Quality
from meshwright.app.evidence.training.scores import Errors, SourceScore

_RESTRICTED = re.compile(r"\bNC\b|none stated|non-commercial", re.IGNORECASE)
"""Licences under which rows may be used here, but their figures not be published again: only errors over many are."""

NOTHING = "–"


def report_scatter(report: Report) -> str:
    """Predicted against measured step times of the sources whose figures may be shown."""
    points: dict[str, list[tuple[float, float]]] = {}
    for run in report.runs:
        measured_s = run.measured.outcome.step_time_s
        if run.time_ratio is None or run.prediction is None or measured_s is None or _RESTRICTED.search(run.measured.licence):
            continue
        points.setdefault(run.measured.run.source, []).append((measured_s, run.prediction.step_time_s))
    return scatter_svg([Series(source, tuple(pairs)) for source, pairs in points.items()])


def report_tables(report: Report) -> str:
    """Coverage, errors, order of plans, memory and fit, and what was not predicted."""
    return "\n\n".join((_summary(report), _time(report), _order(report), _memory(report), _unpredicted(report)))


def worst_first(report: Report, why: Mapping[str, str]) -> str:
    """The sources by their error of time, the largest first, each with what is known of its cause."""
    timed = sorted((s for s in report.sources if s.time), key=lambda s: -s.time.mape if s.time else 0.0)
    lines = [
        f"{n}. {markdown_code(s.source)}, {_size(s.time)}. {why.get(s.source, '')}".rstrip()
        for n, s in enumerate(timed, start=1)
    ]
    return "\n".join(lines)


def _size(errors: Errors | None) -> str:
    return NOTHING if errors is None else f"off by {percent(errors.mape)}, bias {errors.bias:+.0%}"


def _summary(report: Report) -> str:
    known = [report.coverage[quality] for quality in (Quality.A, Quality.B) if quality in report.coverage]
    rows, predicted = sum(n for n, _ in known), sum(n for _, n in known)
    of_known = f", {percent(predicted / rows)} of those of quality A and B" if rows else ""
    time = NOTHING if report.mean_time_mape is None else percent(report.mean_time_mape)
    memory = NOTHING if report.mean_memory_mape is None else percent(report.mean_memory_mape)
    return (
        f"**{report.total.predicted:,} of {counted(report.total.rows, 'row')} predicted{of_known}. "
        f"Mean over sources: step time {time}, memory {memory}.**"
    )


def _time(report: Report) -> str:
    lines = [
        "| source | rows | predicted | timed | time MAPE | median | bias |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for score in (*report.sources, report.total):
        cells = (NOTHING,) * 4
        if score.time is not None:
            time = score.time
            cells = (f"{time.n:,}", percent(time.mape), percent(time.median), f"{time.bias:+.0%}")
        lines.append(_row(markdown_text(score.source), f"{score.rows:,}", f"{score.predicted:,}", *cells))
    return "\n".join(lines)


def _order(report: Report) -> str:
    lines = [
        "| source | groups of competing plans | mean Spearman | mean regret | worst regret |",
        "|---|---:|---:|---:|---:|",
    ]
    for score in report.sources:
        if score.ranking is not None:
            found = score.ranking
            regrets = percent(found.mean_regret), percent(found.worst_regret)
            lines.append(_row(markdown_text(score.source), f"{found.groups:,}", f"{found.spearman:.2f}", *regrets))
    return "\n".join(lines)


def _memory(report: Report) -> str:
    lines = [
        "| source | rows with memory | memory MAPE | bias | rows out of memory | fit rightly said | foreseen | false alarms |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    shown = [score for score in report.sources if score.memory is not None or score.fit is not None]
    lines += [_row(markdown_text(score.source), *_memory_cells(score), *_fit_cells(score)) for score in shown]
    return "\n".join(lines)


def _memory_cells(score: SourceScore) -> tuple[str, ...]:
    memory = score.memory
    return (NOTHING,) * 3 if memory is None else (f"{memory.n:,}", percent(memory.mape), f"{memory.bias:+.0%}")


def _fit_cells(score: SourceScore) -> tuple[str, ...]:
    fit = score.fit
    if fit is None:
        return (NOTHING,) * 4
    return f"{fit.n_out_of_memory:,}", percent(fit.accuracy), percent(fit.recall), f"{fit.false_alarms:,}"


def _unpredicted(report: Report) -> str:
    lines = ["| source | rows not predicted | why |", "|---|---:|---|"]
    for score in report.sources:
        lines += [_row(markdown_text(score.source), f"{n:,}", markdown_text(reason)) for reason, n in score.reasons]
    return "\n".join(lines)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


# Predicted against measured step times as an SVG, both axes logarithmic, a colour and a form of dot a source.

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
