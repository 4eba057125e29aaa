"""The validation report as a Markdown page."""

from __future__ import annotations

import re
from collections.abc import Mapping

from meshwright.app.quoting import markdown_code, markdown_text
from meshwright.app.text.figures import counted, percent
from meshwright.app.validation.report import Report
from meshwright.app.validation.rows import Quality
from meshwright.app.validation.scatter import Series, scatter_svg
from meshwright.app.validation.scores import Errors, SourceScore

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
