"""The serving validation report as the tables of a Markdown page."""

from __future__ import annotations

from collections.abc import Iterable

from meshwright.app.base.figures import counted, percent
from meshwright.app.base.quoting import markdown_text
from meshwright.app.evidence.serving.calibration import Fold
from meshwright.app.evidence.serving.report import GroupScore, ServingReport
from meshwright.app.evidence.training.scores import Errors

NOTHING = "–"

_COLUMNS = (
    "rows",
    "n",
    "TTFT as mean",
    "as median",
    "TPOT",
    "tokens/s",
    "in sample TTFT",
    "in sample TPOT",
    "uncalibrated TTFT",
    "uncalibrated TPOT",
    "roofline TTFT",
    "roofline TPOT",
)


def serving_tables(report: ServingReport) -> str:
    """Coverage, errors by group, constants of each fold, and what was not predicted."""
    return "\n\n".join((_summary(report), _errors(report), constants_table(report.folds), _unpredicted(report)))


def _summary(report: ServingReport) -> str:
    total = report.total
    share = percent(total.predicted / total.rows)
    return f"**{total.predicted:,} of {counted(total.rows, 'row')} predicted ({share}).**"


def _errors(report: ServingReport) -> str:
    lines = [f"| {' | '.join(_COLUMNS)} |", f"|{' --- |' * len(_COLUMNS)}"]
    shown = [score for score in report.groups if score.predicted]
    lines += [_line(score) for score in (*shown, report.total)]
    return "\n".join(lines)


def _line(score: GroupScore) -> str:
    fitted, plain, roofline = score.calibrated, score.uncalibrated, score.roofline
    cells = [
        markdown_text(score.group),
        f"{score.predicted:,}" if score.predicted == score.rows else f"{score.predicted:,} of {score.rows:,}",
        _both(fitted.ttft_as_mean),
        _mape(fitted.ttft_as_median),
        _both(fitted.tpot),
        _mape(fitted.throughput),
        _mape(score.in_sample.ttft_as_mean),
        _mape(score.in_sample.tpot),
        _mape(plain.ttft_as_mean),
        _mape(plain.tpot),
        _mape(roofline.ttft_as_mean),
        _mape(roofline.tpot),
    ]
    return f"| {' | '.join(cells)} |"


def _both(found: Errors | None) -> str:
    """Mean, and in brackets median and bias."""
    return NOTHING if found is None else f"{percent(found.mape)} ({percent(found.median)}, {found.bias:+.0%})"


def _mape(found: Errors | None) -> str:
    return NOTHING if found is None else percent(found.mape)


def constants_table(folds: Iterable[Fold]) -> str:
    """The constants of each fold, and how many rows they were fitted to."""
    lines = [
        "| engine | used for | step | prompt operator | request | scheduling | fitted on |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for fold in folds:
        fitted = fold.constants
        basis = f"{fold.rows} rows of others" if fold.rows else "its profile: no other rows"
        cells = (
            fold.engine.value,
            markdown_text(" on ".join(fold.key)),
            f"{fitted.step_s * 1e3:g} ms",
            f"{fitted.operator_s * 1e6:.0f} us",
            f"{fitted.request_s * 1e3:.0f} ms",
            f"`{fitted.scheduling.value}`",
            basis,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _unpredicted(report: ServingReport) -> str:
    if not report.total.reasons:
        return "Every row is predicted."
    lines = ["| rows not predicted | why |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {n:,} | {markdown_text(reason)} |" for reason, n in report.total.reasons)])
