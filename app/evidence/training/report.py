"""The validation report: one record, and its JSON document."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.app.evidence.training.plans import assumptions
from meshwright.app.evidence.training.prediction import Prediction
from meshwright.app.evidence.training.rows import Quality, read_measured_runs
from meshwright.app.evidence.training.scores import (
    ScoredRun,
    SourceScore,
    by_source,
    coverage,
    mean_over_sources,
    score_run,
    score_source,
)
from meshwright.app.evidence.training.sensitivity import UnsaidWord, unsaid_words
from meshwright.app.evidence.training.sources import NO_SOURCES, Sources

VALIDATION_SCHEMA = "meshwright.validation/1"
ALL = "all rows"


@dataclass(frozen=True, slots=True)
class Report:
    """Every run with its prediction, and the scores of each source and of all rows together.

    ``unsaid`` is what rows of sources that no mapping names might have said, and how far it would move their predictions.
    """

    file: str
    runs: tuple[ScoredRun, ...]
    sources: tuple[SourceScore, ...]
    total: SourceScore
    coverage: dict[Quality, tuple[int, int]]
    mean_time_mape: float | None
    mean_memory_mape: float | None
    unsaid: tuple[UnsaidWord, ...] = ()


def validate(path: Path, sources: Sources = NO_SOURCES) -> Report:
    """Predict and score every row of a table; raises InvalidInputError for a file that is not such a table."""
    report = report_of((score_run(row) for row in read_measured_runs(path, sources)), file=path.name)
    predicted = [(run.measured.run, run.prediction) for run in report.runs if run.prediction is not None]
    return replace(report, unsaid=unsaid_words(predicted))


def report_of(runs: Iterable[ScoredRun], *, file: str) -> Report:
    """The report of scored runs."""
    scored = tuple(runs)
    sources = by_source(scored)
    return Report(
        file=file,
        runs=scored,
        sources=sources,
        total=score_source(ALL, scored),
        coverage=coverage(scored),
        mean_time_mape=mean_over_sources(sources, lambda score: score.time.mape if score.time else None),
        mean_memory_mape=mean_over_sources(sources, lambda score: score.memory.mape if score.memory else None),
    )


def report_document(report: Report) -> dict[str, Any]:
    """The report as a JSON document."""
    return {
        "schema": VALIDATION_SCHEMA,
        "file": report.file,
        "rows": report.total.rows,
        "predicted": report.total.predicted,
        "coverage": {quality.value: {"rows": rows, "predicted": n} for quality, (rows, n) in report.coverage.items()},
        "mean_over_sources": {"time_mape": report.mean_time_mape, "memory_mape": report.mean_memory_mape},
        "unsaid": [asdict(word) for word in report.unsaid],
        "total": _score_document(report.total),
        "sources": [_score_document(score) for score in report.sources],
        "runs": [_run_document(run) for run in report.runs],
    }


def _score_document(score: SourceScore) -> dict[str, Any]:
    return asdict(score) | {"reasons": dict(score.reasons)}


def _prediction_document(prediction: Prediction) -> dict[str, Any]:
    """A prediction as a document, with the ends of its band."""
    figures = {name: getattr(prediction, name) for name in ("step_time_s", "peak_memory_gb", "fits")}
    band = prediction.step_time_band_s
    return figures if band is None else figures | {"step_time_band_s": {"low": band[0], "high": band[1]}}


def _run_document(run: ScoredRun) -> dict[str, Any]:
    row, outcome, prediction = run.measured.run, run.measured.outcome, run.prediction
    document: dict[str, Any] = {"line": row.line, "source": row.source, "group": row.group, "model": row.model}
    if prediction is None:
        return document | {"not_predicted": run.reason}
    return document | {
        "predicted": _prediction_document(prediction),
        "assumed": list(assumptions(row)),
        "measured": {
            "status": outcome.status.value,
            "step_time_s": outcome.step_time_s,
            "peak_memory_gb": outcome.peak_memory_gb,
        },
    }
