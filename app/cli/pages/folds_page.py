"""The page that ``meshwright validate --folds`` prints: errors of the three fits by source, and what was fitted."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from meshwright.app.text.console import plain
from meshwright.app.text.figures import percent
from meshwright.app.validation.fold_document import FoldRow, fold_rows
from meshwright.app.validation.folds import FoldedReport
from meshwright.app.validation.scores import Errors

NOTHING = "-"


def print_folded_report(console: Console, report: FoldedReport) -> None:
    """Print the page of a held-out report."""
    means = ", ".join(
        f"{name} {NOTHING if r.mean_time_mape is None else percent(r.mean_time_mape)}"
        for name, r in (("nothing fitted", report.unfitted), ("fitted", report.fitted), ("held out", report.held_out))
    )
    console.print(plain(f"{report.held_out.file}: mean over sources of time MAPE: {means}", style="bold"))
    console.print(plain(f"Held out by model and cluster in {report.folds} folds; device rates and link speeds are fitted."))
    console.print(_errors(report))
    console.print(_constants(report))


def _errors(report: FoldedReport) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column("source", no_wrap=True)
    for column in ("runs", "unfitted", "fitted", "held out", "bias", "Spearman", "regret"):
        table.add_column(column, justify="right")
    for row in fold_rows(report):
        table.add_row(row.source, f"{row.runs:,}", *map(_mape, (row.unfitted, row.fitted, row.held_out)), *_rest(row))
    return table


def _mape(errors: Errors | None) -> str:
    return NOTHING if errors is None else percent(errors.mape)


def _rest(row: FoldRow) -> tuple[str, ...]:
    bias = NOTHING if row.held_out is None else f"{row.held_out.bias:+.0%}"
    if row.ranking is None:
        return bias, NOTHING, NOTHING
    return bias, f"{row.ranking.spearman:.2f}", percent(row.ranking.mean_regret)


def _constants(report: FoldedReport) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column("fitted to all runs", no_wrap=True)
    table.add_column("of", no_wrap=True)
    table.add_column("rate", justify="right")
    for constant, owner, rate in report.constants.listed():
        table.add_row(constant.value, owner, f"{rate:.2f}")
    return table
