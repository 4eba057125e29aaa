"""Errors of predictions: by source over time, memory and fit, and by group over the order of plans."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TypeVar

from meshwright.app.evidence.training.cells import NotPredictedError, of_one_row
from meshwright.app.evidence.training.prediction import Constants, Prediction, predict_run_with_band
from meshwright.app.evidence.training.rows import Quality, RunStatus, ValidationRun

Key = TypeVar("Key")

MIN_RANKED = 3
"""Plans of a group from which its order says something."""


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """A measured run with its prediction, or the reason why there is none."""

    measured: ValidationRun
    prediction: Prediction | None
    reason: str | None = None

    @property
    def time_ratio(self) -> float | None:
        """Predicted over measured step time of a run that ended well."""
        outcome = self.measured.outcome
        if self.prediction is None or outcome.step_time_s is None or outcome.status is not RunStatus.OK:
            return None
        return self.prediction.step_time_s / outcome.step_time_s

    @property
    def memory_ratio(self) -> float | None:
        """Predicted over measured memory of a run that ended well."""
        outcome = self.measured.outcome
        if self.prediction is None or outcome.peak_memory_gb is None or outcome.status is not RunStatus.OK:
            return None
        return self.prediction.peak_memory_gb / outcome.peak_memory_gb


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of one figure: mean and median of their sizes, and mean with sign (bias)."""

    n: int
    mape: float
    median: float
    bias: float


@dataclass(frozen=True, slots=True)
class FitScore:
    """The score of predicted fits: share of right answers, and of runs out of memory the share foreseen."""

    n: int
    n_out_of_memory: int
    accuracy: float
    recall: float
    false_alarms: int


@dataclass(frozen=True, slots=True)
class Ranking:
    """Over groups of competing plans: mean rank correlation, and how much slower the predicted best is than the best."""

    groups: int
    spearman: float
    mean_regret: float
    worst_regret: float


@dataclass(frozen=True, slots=True)
class SourceScore:
    """All scores of one source, or of all rows."""

    source: str
    rows: int
    predicted: int
    reasons: tuple[tuple[str, int], ...]
    time: Errors | None
    memory: Errors | None
    fit: FitScore | None
    ranking: Ranking | None


def score_run(measured: ValidationRun, constants: Constants | None = None) -> ScoredRun:
    """Predict one run, at rates other than those shipped if given; what was measured is not looked at."""
    try:
        with of_one_row():
            return ScoredRun(measured, predict_run_with_band(measured.run, constants))
    except NotPredictedError as error:
        return ScoredRun(measured, None, str(error))


def by_source(runs: Iterable[ScoredRun]) -> tuple[SourceScore, ...]:
    """Scores of each source, in order of its first row."""
    grouped = _grouped(runs, lambda run: run.measured.run.source)
    return tuple(score_source(source, members) for source, members in grouped.items())


def score_source(source: str, runs: Sequence[ScoredRun]) -> SourceScore:
    """Scores of one set of runs."""
    reasons = Counter(run.reason for run in runs if run.reason is not None)
    return SourceScore(
        source=source,
        rows=len(runs),
        predicted=sum(run.prediction is not None for run in runs),
        reasons=tuple(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        time=errors([run.time_ratio for run in runs]),
        memory=errors([run.memory_ratio for run in runs]),
        fit=_fit(runs),
        ranking=_ranking(runs),
    )


def coverage(runs: Iterable[ScoredRun]) -> dict[Quality, tuple[int, int]]:
    """Rows and predicted rows of each quality."""
    grouped = _grouped(runs, lambda run: run.measured.run.quality)
    return {
        quality: (len(members), sum(run.prediction is not None for run in members))
        for quality, members in sorted(grouped.items())
    }


def mean_over_sources(scores: Iterable[SourceScore], figure: Callable[[SourceScore], float | None]) -> float | None:
    """Plain mean of a figure over the sources that have it: a source of few rows counts as much as a large one."""
    values = [value for value in map(figure, scores) if value is not None]
    return fmean(values) if values else None


def errors(ratios: Iterable[float | None]) -> Errors | None:
    """Relative errors of predicted over measured figures; None without any."""
    signed = [ratio - 1.0 for ratio in ratios if ratio is not None]
    if not signed:
        return None
    sizes = [abs(error) for error in signed]
    return Errors(len(signed), fmean(sizes), median(sizes), fmean(signed))


def spearman(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Rank correlation, equal values sharing their mean rank; 0 when one side has no order."""
    a, b = _ranks(predicted), _ranks(measured)
    mean_a, mean_b = fmean(a), fmean(b)
    covariance = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    spread = math.sqrt(sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b))
    return covariance / spread if spread else 0.0


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Return the regret of the plan that was predicted to be best: how much slower it is than the best; of equals the first."""
    chosen = min(range(len(predicted)), key=lambda i: predicted[i])
    return measured[chosen] / min(measured) - 1.0


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    first = {value: ordered.index(value) for value in set(values)}
    times = Counter(values)
    return [first[value] + (times[value] - 1) / 2 for value in values]


def _fit(runs: Sequence[ScoredRun]) -> FitScore | None:
    """Only of sources in which some run ran out of memory: elsewhere nobody wrote down what did not fit."""
    answers = [
        (run.measured.outcome.status is not RunStatus.OK, not run.prediction.fits) for run in runs if run.prediction is not None
    ]
    out_of_memory = sum(was for was, _ in answers)
    if not out_of_memory:
        return None
    return FitScore(
        n=len(answers),
        n_out_of_memory=out_of_memory,
        accuracy=sum(was == said for was, said in answers) / len(answers),
        recall=sum(was and said for was, said in answers) / out_of_memory,
        false_alarms=sum(said and not was for was, said in answers),
    )


def _ranking(runs: Sequence[ScoredRun]) -> Ranking | None:
    correlations, regrets = [], []
    for group, members in _grouped(runs, lambda run: run.measured.run.group).items():
        timed = [
            (run.prediction.step_time_s, run.measured.outcome.step_time_s)
            for run in members
            if run.time_ratio is not None and run.prediction is not None and run.measured.outcome.step_time_s is not None
        ]
        if not group or len(timed) < MIN_RANKED:
            continue
        predicted, measured = [p for p, _ in timed], [m for _, m in timed]
        correlations.append(spearman(predicted, measured))
        regrets.append(regret(predicted, measured))
    if not correlations:
        return None
    return Ranking(len(correlations), fmean(correlations), fmean(regrets), max(regrets))


def _grouped(runs: Iterable[ScoredRun], key: Callable[[ScoredRun], Key]) -> dict[Key, list[ScoredRun]]:
    grouped: dict[Key, list[ScoredRun]] = defaultdict(list)
    for run in runs:
        grouped[key(run)].append(run)
    return grouped
