"""Held-out scores as a JSON document and as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from meshwright.app.quoting import markdown_text
from meshwright.app.text.figures import percent
from meshwright.app.validation.folds import FoldedReport
from meshwright.app.validation.report import Report, report_document
from meshwright.app.validation.scores import Errors, Ranking

NOTHING = "–"


@dataclass(frozen=True, slots=True)
class FoldRow:
    """One source, or the mean over them: time MAPE of the three fits; bias and order of plans of the held-out one."""

    source: str
    runs: int | None
    unfitted: Errors | None
    fitted: Errors | None
    held_out: Errors | None
    ranking: Ranking | None


def fold_rows(report: FoldedReport) -> Iterator[FoldRow]:
    """Sources with step times, in order of the table."""
    by_source = zip(report.unfitted.sources, report.fitted.sources, report.held_out.sources, strict=True)
    for unfitted, fitted, held_out in by_source:
        if held_out.time is not None:
            runs = held_out.time.n
            yield FoldRow(held_out.source, runs, unfitted.time, fitted.time, held_out.time, held_out.ranking)


def folds_document(report: FoldedReport) -> dict[str, Any]:
    """The held-out report as a JSON document, with what was fitted and the scores of the other two fits beside."""
    return report_document(report.held_out) | {
        "folds": report.folds,
        "unfitted": _short(report.unfitted),
        "fitted": _short(report.fitted),
        "constants": [
            {"constant": constant.value, "of": owner, "rate": rate}
            for (constant, owner), rate in sorted(
                report.constants.rates.items(), key=lambda item: (item[0][1], item[0][0].value)
            )
        ],
    }


def _short(report: Report) -> dict[str, Any]:
    whole = report_document(report)
    return {name: whole[name] for name in ("mean_over_sources", "total", "sources")}


def fold_tables(report: FoldedReport) -> str:
    """Scores of the three fits by source, and the fitted constants, in Markdown."""
    means = " / ".join(_percent(r.mean_time_mape) for r in (report.unfitted, report.fitted, report.held_out))
    lines = [
        f"**Mean over sources of time MAPE: {means} (nothing fitted / fitted to these rows / held out in {report.folds} "
        "folds).**",
        "",
        "| source | runs | nothing fitted | fitted to these rows | held out | bias | mean Spearman | mean regret |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in fold_rows(report):
        errors = (_percent(e.mape if e else None) for e in (row.unfitted, row.fitted, row.held_out))
        bias = f"{row.held_out.bias:+.0%}" if row.held_out else NOTHING
        order = (f"{row.ranking.spearman:.2f}", percent(row.ranking.mean_regret)) if row.ranking else (NOTHING, NOTHING)
        lines.append(f"| {' | '.join((markdown_text(row.source), f'{row.runs:,}', *errors, bias, *order))} |")
    lines += ["", "| constant | of | rate |", "|---|---|---:|"]
    for constant, owner, rate in report.constants.listed():
        lines.append(f"| {constant.value} | {markdown_text(owner)} | {rate:.2f} |")
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return NOTHING if share is None else percent(share)
