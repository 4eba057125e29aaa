"""Held-out scores: constants fitted to a part of the runs, and scored on runs of other models and clusters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwright.app.validation.constants import Constants
from meshwright.app.validation.fitting import fit_constants, fitted_runs, refit
from meshwright.app.validation.report import Report, report_of
from meshwright.app.validation.rows import MeasuredRun, read_measured_runs
from meshwright.app.validation.scores import score_run
from meshwright.app.validation.sources import NO_SOURCES, Sources

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


def folded_report(rows: Sequence[MeasuredRun], *, folds: int, file: str) -> FoldedReport:
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


def _fits(timed: Sequence[MeasuredRun], folds: int) -> tuple[Constants, dict[Group, Constants]]:
    """The constants of all runs, and for each group those of the folds that it is not in."""
    fold_of = assigned_folds(timed, folds)
    runs = fitted_runs(timed)
    constants, parts = fit_constants(runs)
    folds_of_runs: NDArray[np.int64] = np.array([fold_of[group_of(row)] for row in runs])
    of_fold = {fold: refit(parts, runs, folds_of_runs != fold) for fold in sorted(set(fold_of.values()))}
    return constants, {group: of_fold[fold] for group, fold in fold_of.items()}


def group_of(row: MeasuredRun) -> Group:
    """Return the group of a row; rows of one group must not be on both sides of a fold."""
    return row.run.model, row.run.gpu, row.run.n_gpus


def assigned_folds(rows: Sequence[MeasuredRun], folds: int) -> dict[Group, int]:
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
