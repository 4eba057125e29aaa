"""The report of a serving table: every row with its predictions, and the errors of each group; its JSON document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meshwright.app.validation.scores import Errors, errors
from meshwright.app.validation.serving.calibration import CrossValidation, Fold, calibrate, figures
from meshwright.app.validation.serving.deployment import Deployment, deployment
from meshwright.app.validation.serving.recipes import EngineName
from meshwright.app.validation.serving.replay import EngineConstants, Figures, default_constants, roofline
from meshwright.app.validation.serving.rows import MeasuredPoint, read_measured_points
from meshwright.app.validation.unpredicted import NotPredictedError

SERVING_VALIDATION_SCHEMA = "meshwright.serving-validation/1"
ALL = "all rows"


@dataclass(frozen=True, slots=True)
class ScoredPoint:
    """A measured point with its predictions: from the engine's profile as it stands, with constants calibrated on other
    models and GPUs, with those fitted to all rows, and of a plain roofline; or the reason why there are none."""

    measured: MeasuredPoint
    uncalibrated: Figures | None = None
    calibrated: Figures | None = None
    in_sample: Figures | None = None
    plain: Figures | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class FigureErrors:
    """Errors of one kind of prediction. The source does not state its statistic of TTFT: both are compared."""

    ttft_as_mean: Errors | None
    ttft_as_median: Errors | None
    tpot: Errors | None
    throughput: Errors | None


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
    """Every point, the constants of each fold, and the scores of each group and of all rows together."""

    file: str
    points: tuple[ScoredPoint, ...]
    folds: tuple[Fold, ...]
    groups: tuple[GroupScore, ...]
    total: GroupScore


def validate_serving(path: Path) -> ServingReport:
    """Predict and score every row of a table; raises InvalidInputError for a file that is not such a table."""
    return serving_report(read_measured_points(path), file=path.name)


def serving_report(points: Sequence[MeasuredPoint], *, file: str) -> ServingReport:
    """The report of measured points."""
    calibration = calibrate(points)
    constants = {(fold.engine, fold.hardware): fold.constants for fold in calibration.folds}
    scored = tuple(_score(point, calibration, constants) for point in points)
    grouped: dict[str, list[ScoredPoint]] = {}
    for point in scored:
        grouped.setdefault(point.measured.run.group, []).append(point)
    groups = tuple(_group_score(name, members) for name, members in sorted(grouped.items()))
    return ServingReport(file, scored, calibration.folds, groups, _group_score(ALL, scored))


def _score(
    point: MeasuredPoint, calibration: CrossValidation, held_out: dict[tuple[EngineName, tuple[str, str]], EngineConstants]
) -> ScoredPoint:
    """Predict one point; what was measured in it is not looked at."""
    try:
        deployed = deployment(point.run)
        return ScoredPoint(
            measured=point,
            uncalibrated=figures(deployed, default_constants(deployed.engine)),
            calibrated=figures(deployed, held_out[deployed.engine, deployed.hardware]),
            in_sample=figures(deployed, calibration.in_sample[deployed.engine]),
            plain=_roofline(deployed),
        )
    except NotPredictedError as error:
        return ScoredPoint(point, reason=str(error))


def _roofline(deployed: Deployment) -> Figures | None:
    try:
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
        calibrated=_figure_errors(points, lambda point: point.calibrated),
        in_sample=_figure_errors(points, lambda point: point.in_sample),
        uncalibrated=_figure_errors(points, lambda point: point.uncalibrated),
        roofline=_figure_errors(points, lambda point: point.plain),
    )


def _figure_errors(points: Iterable[ScoredPoint], prediction: Callable[[ScoredPoint], Figures | None]) -> FigureErrors:
    pairs = [(found, p.measured.outcome) for p in points if (found := prediction(p)) is not None]
    return FigureErrors(
        ttft_as_mean=errors([_ratio(f.ttft_mean_ms, o.ttft_ms) for f, o in pairs]),
        ttft_as_median=errors([_ratio(f.ttft_median_ms, o.ttft_ms) for f, o in pairs]),
        tpot=errors([_ratio(f.tpot_ms, o.tpot_ms) for f, o in pairs]),
        throughput=errors([_ratio(f.output_tokens_per_s, o.output_tokens_per_s) for f, o in pairs]),
    )


def _ratio(predicted: float, measured: float | None) -> float | None:
    return None if measured is None else predicted / measured


def serving_report_document(report: ServingReport) -> dict[str, Any]:
    """The report as a JSON document."""
    return {
        "schema": SERVING_VALIDATION_SCHEMA,
        "file": report.file,
        "rows": report.total.rows,
        "predicted": report.total.predicted,
        "folds": [asdict(fold) for fold in report.folds],
        "total": _score_document(report.total),
        "groups": [_score_document(score) for score in report.groups],
        "points": [_point_document(point) for point in report.points],
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
