"""The page that ``meshwright validate`` prints: errors by source, order of plans, memory, and what was not predicted."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from meshwright.app.base.console import plain
from meshwright.app.base.figures import counted, percent
from meshwright.app.evidence.serving.calibration import Fold
from meshwright.app.evidence.serving.open_report import ILL_CONDITIONED, OpenReport, Spread
from meshwright.app.evidence.serving.report import GroupScore, ServingReport
from meshwright.app.evidence.training.folds import FoldedReport, FoldRow, fold_rows
from meshwright.app.evidence.training.report import Report
from meshwright.app.evidence.training.rows import Quality
from meshwright.app.evidence.training.scores import Errors, SourceScore
from meshwright.app.evidence.training.sensitivity import UnsaidWord, moving_most

NOTHING = "-"
"""Reasons listed on the page; all are in the JSON document."""


def print_report(console: Console, report: Report) -> None:
    """Print the page of a report."""
    console.print(plain(f"{report.file}: {_headline(report)}", style="bold"))
    console.print(plain(_coverage(report)))
    console.print(_errors_table(report))
    console.print(_order_table(report))
    for line in (*_unsaid(report.unsaid), *unpredicted(report.total.rows, report.total.predicted, report.total.reasons)):
        console.print(line)


def _unsaid(words: Sequence[UnsaidWord]) -> list[Text]:
    """The words whose saying would move predictions most, of step time and of memory; none if all is said."""
    lines = []
    for figure, below, above in (("time", "faster", "slower"), ("memory", "less memory", "more memory")):
        for word in moving_most(words, attrgetter(figure)):
            factor = getattr(word, figure)
            moved = f"{max(factor, 1 / factor):.2f} times {below if factor < 1 else above}"
            lines.append(plain(f"  {word.name} {word.word}: {moved} ({counted(word.rows, 'row')})"))
    return [plain("Not said by rows, and would move them most (a mapping says it, --sources):"), *lines] if lines else []


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


# The page that ``meshwright validate --folds`` prints: errors of the three fits by source, and what was fitted.


def print_folded_report(console: Console, report: FoldedReport) -> None:
    """Print the page of a held-out report."""
    means = ", ".join(
        f"{name} {NOTHING if r.mean_time_mape is None else percent(r.mean_time_mape)}"
        for name, r in (("nothing fitted", report.unfitted), ("fitted", report.fitted), ("held out", report.held_out))
    )
    console.print(plain(f"{report.held_out.file}: mean over sources of time MAPE: {means}", style="bold"))
    console.print(plain(f"Held out by model and cluster in {report.folds} folds; device rates and link speeds are fitted."))
    console.print(_errors(report))
    console.print(_fold_constants(report))


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


def _fold_constants(report: FoldedReport) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column("fitted to all runs", no_wrap=True)
    table.add_column("of", no_wrap=True)
    table.add_column("rate", justify="right")
    for constant, owner, rate in report.constants.listed():
        table.add_row(constant.value, owner, f"{rate:.2f}")
    return table


# The page that ``meshwright validate`` prints for serving points: errors by group, the roofline's beside them.


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
    if report.open_loops is not None:
        print_open_loops(console, report.open_loops)
    if report.ignored:
        console.print(plain(f"Columns that nothing is read from: {', '.join(report.ignored)}", style="dim"))
    for line in (*_constants(report.folds), *unpredicted(report.total.rows, report.total.predicted, report.total.reasons)):
        console.print(line)


def print_open_loops(console: Console, report: OpenReport) -> None:
    """Print what was promised of open loops, and what is simulated over what was measured."""
    console.print(plain("Open loops: predicted over measured, median (eight of ten rows between)", style="bold"))
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("rows", overflow="fold", max_width=24)
    for column in ("n", "TTFT P50", "TTFT P95", "TPOT P50", "TPOT P95", "goodput", "steps"):
        table.add_column(column, justify="right")
    for score in report.scores:
        ratios = (score.ttft.get("p50"), score.ttft.get("p95"), score.tpot.get("p50"), score.tpot.get("p95"))
        table.add_row(score.group, str(score.rows), *map(spread_words, (*ratios, score.goodput, score.slowdown)))
    console.print(table)
    for score in report.scores:
        left_out = "" if score.kept is None else f", by open loops of other submitters {_kept(score.kept)}"
        console.print(
            plain(f"Below what is promised at 0.9, {score.group}: by closed loops {_kept(score.kept_today)}{left_out}")
        )
    console.print(plain(f"{ILL_CONDITIONED}.", style="dim"))


def _kept(shares: tuple[float, float]) -> str:
    return f"TTFT {percent(shares[0])}, TPOT {percent(shares[1])}"


def spread_words(spread: Spread | None) -> str:
    """A median with its spread, or a dash."""
    return NOTHING if spread is None else f"{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"


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


# Why rows of a measured table have no prediction, in a terminal.

SHOWN_REASONS = 12


def unpredicted(rows: int, predicted: int, reasons: tuple[tuple[str, int], ...]) -> list[Text]:
    """A line a reason, the most common first, of the rows that were not predicted; none if all were."""
    if rows == predicted:
        return []
    shown = [plain(f"  {n:>5,}  {reason}") for reason, n in reasons[:SHOWN_REASONS]]
    left_out = sum(n for _, n in reasons[SHOWN_REASONS:])
    if left_out:
        shown.append(plain(f"  {left_out:>5,}  for other reasons; --json names every row"))
    return [plain(f"Not predicted, {counted(rows - predicted, 'row')}:"), *shown]
