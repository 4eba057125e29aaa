"""The report of a serving table: every row with its predictions, and the errors of each group; its JSON document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.app.evidence.serving.calibration import CrossValidation, Fold, calibrate, figures
from meshwright.app.evidence.serving.deployment import Deployment, deployment
from meshwright.app.evidence.serving.figures import Figures
from meshwright.app.evidence.serving.open_report import OpenReport, open_document, open_point, open_report
from meshwright.app.evidence.serving.replay import default_constants, roofline
from meshwright.app.evidence.serving.rows import MeasuredPoint, ignored_columns, read_measured_points
from meshwright.app.evidence.training.cells import NotPredictedError, of_one_row
from meshwright.app.evidence.training.scores import Errors, errors

SERVING_VALIDATION_SCHEMA = "meshwright.serving-validation/1"
ALL = "all rows"


@dataclass(frozen=True, slots=True)
class ScoredPoint:
    """A measured point with its predictions: simulated from the engine's profile as it stands, the same as ``plan`` has it,
    with constants calibrated on other models and GPUs, with those fitted to all rows, and of a plain roofline; or the reason
    why there are none."""

    measured: MeasuredPoint
    deployed: Deployment | None = None
    simulated: Figures | None = None
    uncalibrated: Figures | None = None
    calibrated: Figures | None = None
    in_sample: Figures | None = None
    plain: Figures | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class FigureErrors:
    """Errors of one kind of prediction. ``ttft`` is in the statistic that each row states, the mean where it states none; since
    most state none, the mean and the median of all rows are compared as well. P99 where it was measured."""

    ttft: Errors | None
    ttft_as_mean: Errors | None
    ttft_as_median: Errors | None
    tpot: Errors | None
    throughput: Errors | None
    ttft_p99: Errors | None
    tpot_p99: Errors | None


@dataclass(frozen=True, slots=True)
class GroupScore:
    """All scores of the rows of one group, or of all."""

    group: str
    rows: int
    predicted: int
    reasons: tuple[tuple[str, int], ...]
    calibrated: FigureErrors
    in_sample: FigureErrors
    uncalibrated: FigureErrors
    roofline: FigureErrors


@dataclass(frozen=True, slots=True)
class ServingReport:
    """Every point, the constants of each fold, and the scores of each group and of all rows together; of open loops what was
    promised besides."""

    file: str
    points: tuple[ScoredPoint, ...]
    folds: tuple[Fold, ...]
    groups: tuple[GroupScore, ...]
    total: GroupScore
    ignored: tuple[str, ...] = ()
    open_loops: OpenReport | None = None


def validate_serving(path: Path, models: Path | None = None) -> ServingReport:
    """Predict and score every row of a table; raises InvalidInputError for a file that is not such a table.

    ``models`` is a folder of config files in which models are looked up before the catalogue.
    """
    report = serving_report(read_measured_points(path), file=path.name, models=models)
    return replace(report, ignored=ignored_columns(path))


def serving_report(points: Sequence[MeasuredPoint], *, file: str, models: Path | None = None) -> ServingReport:
    """The report of measured points."""
    calibration = calibrate(points, models=models)
    scored = tuple(score(point, calibration, models) for point in points)
    grouped: dict[str, list[ScoredPoint]] = {}
    for point in scored:
        grouped.setdefault(point.measured.run.group, []).append(point)
    groups = tuple(_group_score(name, members) for name, members in sorted(grouped.items()))
    return ServingReport(file, scored, calibration.folds, groups, _group_score(ALL, scored), open_loops=_open_loops(scored))


def _open_loops(scored: Sequence[ScoredPoint]) -> OpenReport | None:
    found = (open_point(each.measured, each.deployed) for each in scored if each.deployed is not None)
    return open_report(point for point in found if point is not None)


def score(point: MeasuredPoint, calibration: CrossValidation, models: Path | None = None) -> ScoredPoint:
    """Predict one point; what was measured in it is not looked at."""
    try:
        with of_one_row():
            deployed = deployment(point.run, models)
            return ScoredPoint(
                measured=point,
                deployed=deployed,
                simulated=figures(deployed, replace(default_constants(deployed.engine), request_s=0.0)),
                uncalibrated=figures(deployed, default_constants(deployed.engine)),
                calibrated=figures(deployed, calibration.held_out(deployed)),
                in_sample=figures(deployed, calibration.in_sample[deployed.engine]),
                plain=_roofline(deployed),
            )
    except NotPredictedError as error:
        return ScoredPoint(point, reason=str(error))


def _roofline(deployed: Deployment) -> Figures | None:
    if deployed.requests_per_s is not None:
        return None
    try:
        with of_one_row():
            return roofline(deployed)
    except NotPredictedError:
        return None


def _group_score(name: str, points: Sequence[ScoredPoint]) -> GroupScore:
    reasons = Counter(point.reason for point in points if point.reason is not None)
    return GroupScore(
        group=name,
        rows=len(points),
        predicted=sum(point.reason is None for point in points),
        reasons=tuple(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        calibrated=figure_errors(points, lambda point: point.calibrated),
        in_sample=figure_errors(points, lambda point: point.in_sample),
        uncalibrated=figure_errors(points, lambda point: point.uncalibrated),
        roofline=figure_errors(points, lambda point: point.plain),
    )


def figure_errors(points: Iterable[ScoredPoint], prediction: Callable[[ScoredPoint], Figures | None]) -> FigureErrors:
    """The errors of one kind of prediction of these points."""
    pairs = [(found, p.measured.outcome) for p in points if (found := prediction(p)) is not None]
    return FigureErrors(
        ttft=errors([_ratio(f.ttft_of(o.statistic), o.ttft_ms) for f, o in pairs]),
        ttft_as_mean=errors([_ratio(f.ttft_mean_ms, o.ttft_ms) for f, o in pairs]),
        ttft_as_median=errors([_ratio(f.ttft_median_ms, o.ttft_ms) for f, o in pairs]),
        tpot=errors([_ratio(f.tpot_of(o.statistic), o.tpot_ms) for f, o in pairs]),
        throughput=errors([_ratio(f.output_tokens_per_s, o.output_tokens_per_s) for f, o in pairs]),
        ttft_p99=errors([_ratio(f.ttft_p99_ms, o.ttft_p99_ms) for f, o in pairs]),
        tpot_p99=errors([_ratio(f.tpot_p99_ms, o.tpot_p99_ms) for f, o in pairs]),
    )


def _ratio(predicted: float | None, measured: float | None) -> float | None:
    return None if measured is None or predicted is None else predicted / measured


def serving_report_document(report: ServingReport) -> dict[str, Any]:
    """The report as a JSON document."""
    return {
        "schema": SERVING_VALIDATION_SCHEMA,
        "file": report.file,
        "rows": report.total.rows,
        "predicted": report.total.predicted,
        "ignored_columns": list(report.ignored),
        "folds": [asdict(fold) for fold in report.folds],
        "total": _score_document(report.total),
        "groups": [_score_document(score) for score in report.groups],
        "points": [_point_document(point) for point in report.points],
        **({} if report.open_loops is None else {"open_loops": open_document(report.open_loops)}),
    }


def _score_document(score: GroupScore) -> dict[str, Any]:
    return asdict(score) | {"reasons": dict(score.reasons)}


def _point_document(point: ScoredPoint) -> dict[str, Any]:
    document: dict[str, Any] = {"line": point.measured.run.line, "group": point.measured.run.group}
    if point.reason is not None or point.calibrated is None or point.uncalibrated is None:
        return document | {"not_predicted": point.reason}
    return document | {
        "calibrated": asdict(point.calibrated),
        "uncalibrated": asdict(point.uncalibrated),
        "roofline": None if point.plain is None else asdict(point.plain),
        "measured": asdict(point.measured.outcome),
    }
