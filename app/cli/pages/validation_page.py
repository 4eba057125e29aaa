"""The page that ``meshwright validate`` prints: errors by source, order of plans, memory, and what was not predicted."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from meshwright.app.cli.pages.unpredicted import unpredicted
from meshwright.app.text.console import plain
from meshwright.app.text.figures import counted, percent
from meshwright.app.validation.report import Report
from meshwright.app.validation.rows import Quality
from meshwright.app.validation.scores import Errors, SourceScore

NOTHING = "-"
"""Reasons listed on the page; all are in the JSON document."""


def print_report(console: Console, report: Report) -> None:
    """Print the page of a report."""
    console.print(plain(f"{report.file}: {_headline(report)}", style="bold"))
    console.print(plain(_coverage(report)))
    console.print(_errors_table(report))
    console.print(_order_table(report))
    for line in unpredicted(report.total.rows, report.total.predicted, report.total.reasons):
        console.print(line)


def _headline(report: Report) -> str:
    total = report.total
    time = NOTHING if report.mean_time_mape is None else percent(report.mean_time_mape)
    memory = NOTHING if report.mean_memory_mape is None else percent(report.mean_memory_mape)
    return (
        f"{total.predicted:,} of {counted(total.rows, 'row')} predicted; "
        f"mean over sources of time MAPE {time}, of memory MAPE {memory}"
    )


def _coverage(report: Report) -> str:
    parts = [f"{quality.value} {predicted:,} of {rows:,}" for quality, (rows, predicted) in report.coverage.items()]
    known = [report.coverage[quality] for quality in (Quality.A, Quality.B) if quality in report.coverage]
    rows, predicted = sum(n for n, _ in known), sum(n for _, n in known)
    share = f"; A and B together {percent(predicted / rows)}" if rows else ""
    return f"By quality: {', '.join(parts)}{share}"


def _errors_table(report: Report) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column("source", no_wrap=True)
    for column in ("rows", "pred.", "time n", "MAPE", "median", "bias", "mem n", "MAPE", "bias"):
        table.add_column(column, justify="right")
    for score in (*report.sources, report.total):
        time, memory = score.time, score.memory
        table.add_row(
            score.source, f"{score.rows:,}", f"{score.predicted:,}", *_time_cells(time), *_memory_cells(memory)
        )  # fmt: skip
    return table


def _time_cells(errors: Errors | None) -> tuple[str, ...]:
    if errors is None:
        return (NOTHING,) * 4
    return f"{errors.n:,}", percent(errors.mape), percent(errors.median), f"{errors.bias:+.0%}"


def _memory_cells(errors: Errors | None) -> tuple[str, ...]:
    return (NOTHING,) * 3 if errors is None else (f"{errors.n:,}", percent(errors.mape), f"{errors.bias:+.0%}")


def _order_table(report: Report) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column("source", no_wrap=True)
    for column in ("groups", "Spearman", "regret", "worst", "OOM rows", "right", "recall", "false"):
        table.add_column(column, justify="right")
    for score in report.sources:
        if score.ranking is not None or score.fit is not None:
            table.add_row(score.source, *_ranking_cells(score), *_fit_cells(score))
    return table


def _ranking_cells(score: SourceScore) -> tuple[str, ...]:
    ranking = score.ranking
    if ranking is None:
        return (NOTHING,) * 4
    return f"{ranking.groups:,}", f"{ranking.spearman:.2f}", percent(ranking.mean_regret), percent(ranking.worst_regret)


def _fit_cells(score: SourceScore) -> tuple[str, ...]:
    fit = score.fit
    if fit is None:
        return (NOTHING,) * 4
    return f"{fit.n_out_of_memory:,}", percent(fit.accuracy), percent(fit.recall), f"{fit.false_alarms:,}"
