"""The page that ``meshwright validate`` prints for serving points: errors by group, the roofline's beside them."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from meshwright.app.cli.pages.unpredicted import unpredicted
from meshwright.app.text.console import plain
from meshwright.app.text.figures import counted, percent
from meshwright.app.validation.scores import Errors
from meshwright.app.validation.serving.calibration import Fold
from meshwright.app.validation.serving.report import GroupScore, ServingReport

NOTHING = "-"
"""Reasons listed on the page; all are in the JSON document."""


def print_serving_report(console: Console, report: ServingReport) -> None:
    """Print the page of a report."""
    console.print(plain(f"{report.file}: {headline(report)}", style="bold"))
    console.print(plain("MAPE with engine constants calibrated on other models and GPUs; roofline beside", style="dim"))
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("group", overflow="fold", max_width=32)
    for column in ("rows", "TTFT", "TPOT", "tok/s", "roofline", "TPOT"):
        table.add_column(column, justify="right")
    for score in (*report.groups, report.total):
        table.add_row(*_cells(score))
    console.print(table)
    if report.ignored:
        console.print(plain(f"Columns that nothing is read from: {', '.join(report.ignored)}", style="dim"))
    for line in (*_constants(report.folds), *unpredicted(report.total.rows, report.total.predicted, report.total.reasons)):
        console.print(line)


def headline(report: ServingReport) -> str:
    """Rows predicted and the errors over all rows, before and after calibration."""
    total = report.total
    calibrated, plain = total.calibrated, total.uncalibrated
    return (
        f"{total.predicted:,} of {counted(total.rows, 'row')} predicted ({percent(total.predicted / max(1, total.rows))}); "
        f"TPOT MAPE {mape(calibrated.tpot)} ({mape(plain.tpot)} uncalibrated), "
        f"TTFT {mape(calibrated.ttft_as_mean)} as mean ({mape(plain.ttft_as_mean)}), "
        f"{mape(calibrated.ttft_as_median)} as median"
    )


def mape(found: Errors | None) -> str:
    """A mean absolute error, or a dash."""
    return NOTHING if found is None else percent(found.mape)


def _cells(score: GroupScore) -> tuple[str, ...]:
    rows = f"{score.predicted:,}" if score.predicted == score.rows else f"{score.predicted:,}/{score.rows:,}"
    fitted, plain = score.calibrated, score.roofline
    return (
        score.group,
        rows,
        mape(fitted.ttft_as_mean),
        mape(fitted.tpot),
        mape(fitted.throughput),
        mape(plain.ttft_as_mean),
        mape(plain.tpot),
    )


def _constants(folds: tuple[Fold, ...]) -> list[Text]:
    lines = [plain("Engine constants, each fitted without the rows of the model and GPU it is used for:")]
    for fold in folds:
        fitted = fold.constants
        basis = f"from {counted(fold.rows, 'row')}" if fold.rows else "from the profile: no other rows"
        lines.append(
            plain(
                f"  {fold.engine} for {' on '.join(fold.key)}: {fitted.step_s * 1e3:g} ms a "
                f"step, {fitted.request_s * 1e3:.0f} ms a request, {fitted.scheduling.value}, {basis}",
                style="dim",
            )
        )
    return lines if folds else []
