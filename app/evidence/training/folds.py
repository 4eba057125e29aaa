"""Held-out scores: constants fitted to a part of the runs, and scored on runs of other models and clusters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.app.base.figures import percent
from meshwright.app.base.quoting import markdown_text
from meshwright.app.evidence.training.fitting import fit_constants, fitted_runs, refit
from meshwright.app.evidence.training.prediction import Constants
from meshwright.app.evidence.training.report import Report, report_document, report_of
from meshwright.app.evidence.training.rows import ValidationRun, read_measured_runs
from meshwright.app.evidence.training.scores import Errors, Ranking, score_run
from meshwright.app.evidence.training.sources import NO_SOURCES, Sources

Group = tuple[str, str, int | None]
"""Model, GPU and number of GPUs: runs of a group are never on both sides of a fold."""


@dataclass(frozen=True, slots=True)
class FoldedReport:
    """Scores before any fit, of a fit to all runs on these same runs, and of fits on runs that they have not seen.

    constants   of the fit to all runs
    """

    folds: int
    constants: Constants
    unfitted: Report
    fitted: Report
    held_out: Report


def validate_in_folds(path: Path, *, folds: int, sources: Sources = NO_SOURCES) -> FoldedReport:
    """Fit and score the runs of a table; raises InvalidInputError for a file that is not such a table."""
    return folded_report(read_measured_runs(path, sources), folds=folds, file=path.name)


def folded_report(rows: Sequence[ValidationRun], *, folds: int, file: str) -> FoldedReport:
    """Fit and score runs; those that ran out of memory or are not predicted are in no fit."""
    nothing = Constants()
    unfitted = [score_run(row, nothing) for row in rows]
    timed = [scored.measured for scored in unfitted if scored.time_ratio is not None]
    constants, held_out_constants = _fits(timed, folds) if timed else (nothing, {})
    return FoldedReport(
        folds=folds,
        constants=constants,
        unfitted=report_of(unfitted, file=file),
        fitted=report_of((score_run(row, constants) for row in rows), file=file),
        held_out=report_of((score_run(row, held_out_constants.get(group_of(row), nothing)) for row in rows), file=file),
    )


def _fits(timed: Sequence[ValidationRun], folds: int) -> tuple[Constants, dict[Group, Constants]]:
    """The constants of all runs, and for each group those of the folds that it is not in."""
    fold_of = assigned_folds(timed, folds)
    runs = fitted_runs(timed)
    constants, parts = fit_constants(runs)
    folds_of_runs: NDArray[np.int64] = np.array([fold_of[group_of(row)] for row in runs])
    of_fold = {fold: refit(parts, runs, folds_of_runs != fold) for fold in sorted(set(fold_of.values()))}
    return constants, {group: of_fold[fold] for group, fold in fold_of.items()}


def group_of(row: ValidationRun) -> Group:
    """Return the group of a row; rows of one group must not be on both sides of a fold."""
    return row.run.model, row.run.gpu, row.run.n_gpus


def assigned_folds(rows: Sequence[ValidationRun], folds: int) -> dict[Group, int]:
    """Fold of each group: the largest first, each to the fold with the fewest runs of its sources, then the fewest runs."""
    sizes = Counter(group_of(row) for row in rows)
    sources: dict[Group, set[str]] = defaultdict(set)
    for row in rows:
        sources[group_of(row)].add(row.run.source)
    taken: Counter[tuple[int, str]] = Counter()
    total: Counter[int] = Counter()
    assigned: dict[Group, int] = {}
    for group in sorted(sizes, key=lambda g: (-sizes[g], g[0], g[1], g[2] or 0)):
        fold = min(range(folds), key=lambda f: (sum(taken[f, s] for s in sources[group]), total[f], f))
        assigned[group] = fold
        total[fold] += sizes[group]
        for source in sources[group]:
            taken[fold, source] += sizes[group]
    return assigned


# Held-out scores as a JSON document and as Markdown tables.

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
