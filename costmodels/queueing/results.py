"""The results of a simulation: times of every request, and how busy the engine was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from statistics import fmean

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

# Percentiles of correlated observations, with a confidence interval.

FloatArray = npt.NDArray[np.float64]

_SECTIONS = 400
"""Sections of a run whose means make the spectrum; more change nothing at the low end (Heidelberger and Welch 1981)."""

_PAIRS = 25
"""Pairs of low frequencies that the spectrum at zero is fitted to, and the degree of the fit, both as they advise."""

_DEGREE = 2

_FEWEST_PAIRS = 4

_LOG_VARIANCE = math.pi**2 / 6.0 - 1.0
"""Variance of the log of a mean of two periodogram ordinates, each chi-squared with two degrees of freedom: trigamma(2)."""

_LOG_BIAS = math.log(2.0) - (1.0 - float(np.euler_gamma))
"""The amount by which the mean of the log is too low: log 2 - digamma(2)."""

CONFIDENCE = 0.90

_ALIKE = 1e-6
"""Relative difference below which two times are one: each is the difference of two moments of a run, so that equal ones differ
by rounding, late in a long run most."""


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile and its two-sided confidence interval (CONFIDENCE)."""

    value: float
    low: float
    high: float


def percentile(observations: FloatArray, probability: float) -> Percentile:
    """Percentile of observations in order of time, with a confidence interval that holds for correlated ones.

    The spectrum at zero of "does not exceed the percentile" (Heidelberger and Welch 1981) gives the error of the probability,
    also when neighbours are correlated over much of a run, as in a busy queue; the percentiles at the probability more or less
    that error are the interval (Conover 1999, section 3.2). This needs no density, so it holds where many requests see the same
    time. Where correlation lets the error reach beyond all observations, the smallest or the largest of a run of several per
    section is the end; of a shorter run it is infinite.
    """
    n = len(observations)
    if n == 0:
        return Percentile(math.nan, -math.inf, math.inf)
    ordered = np.sort(observations)
    value = float(ordered[_rank(n, probability)])
    half = share_error(observations, value, share=probability)
    if math.isinf(half):
        return Percentile(value, -math.inf, math.inf)
    low, high = probability - half, probability + half
    several = n >= 2 * _SECTIONS
    return Percentile(
        value,
        float(ordered[_rank(n, low)]) if low > 0.0 or several else -math.inf,
        float(ordered[_rank(n, high)]) if high < 1.0 or several else math.inf,
    )


def run_percentile(observations: FloatArray, probability: float) -> Percentile:
    """Percentile of all observations of one run, which is what is asked about: no interval around it."""
    if len(observations) == 0:
        return Percentile(math.nan, -math.inf, math.inf)
    value = float(np.sort(observations)[_rank(len(observations), probability)])
    return Percentile(value, value, value)


def share_error(observations: FloatArray, value: float, *, share: float | None = None) -> float:
    """Half the confidence interval of the share of observations, in order of time, that do not exceed a value; infinite for
    too few of them. ``share`` is what it is about, by default their own."""
    n = len(observations)
    sections = min(_SECTIONS, n)
    fit = _fit(sections)
    if fit is None:
        return math.inf
    size = n // sections
    shares = np.mean(observations[: size * sections].reshape(sections, size) <= value * (1.0 + _ALIKE), axis=1)
    about = float(np.mean(observations <= value * (1.0 + _ALIKE))) if share is None else share
    # Where no section differs, the error of independent observations is the least that is credible.
    variance = max(fit.variance_of_mean(shares), about * (1.0 - about) / n)
    return fit.quantile * math.sqrt(variance)


@dataclass(frozen=True, eq=False)
class _Fit:
    """A parabola through the log of the spectrum, at zero: ``weights`` of its points, what makes up for their error, and
    ``quantile`` of Student's t for an interval."""

    weights: FloatArray
    unbiased: float
    quantile: float

    def variance_of_mean(self, means: FloatArray) -> float:
        """Variance of the mean of all sections."""
        spectrum = np.abs(np.fft.rfft(means)[1 : 2 * len(self.weights) + 1]) ** 2 / len(means)
        pairs = (spectrum[0::2] + spectrum[1::2]) / 2.0
        if float(pairs.max()) <= 0.0:
            return 0.0
        # A pair that is zero but for rounding says little: it counts as a millionth of the largest.
        level = float(self.weights @ (np.log(np.maximum(pairs, 1e-6 * float(pairs.max()))) + _LOG_BIAS))
        return self.unbiased * math.exp(level) / len(means)


@cache
def _fit(sections: int) -> _Fit | None:
    """The fit for a number of sections; None for too few."""
    pairs = min(_PAIRS, (sections - 1) // 4)
    if pairs < _FEWEST_PAIRS:
        return None
    frequency = (4.0 * np.arange(1, pairs + 1) - 1.0) / (2.0 * sections)
    weights = np.linalg.pinv(np.vander(frequency, _DEGREE + 1, increasing=True))[0]
    variance = _LOG_VARIANCE * float(weights @ weights)
    # Degrees of freedom of a chi-squared variable whose variation is that of the level.
    freedom = 2.0 / math.expm1(variance)
    return _Fit(weights, math.exp(-variance / 2.0), float(stdtrit(freedom, (1.0 + CONFIDENCE) / 2.0)))


def _rank(n: int, probability: float) -> int:
    """Index of the smallest of n ordered observations that at least the given share does not exceed."""
    return min(n - 1, max(0, math.ceil(probability * n - 1e-9) - 1))


IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class RequestTimes:
    """When each request arrived, got its first token and its last, in order of arrival; nan for what did not happen.

    ``counted`` requests make the percentiles; ``busy_s`` is how long the busiest stage had worked until the first token;
    ``group`` is the attention group, of several, that a request was given to.
    """

    arrival_s: FloatArray
    first_s: FloatArray
    last_s: FloatArray
    output_tokens: IntArray
    counted: BoolArray
    busy_s: FloatArray
    group: IntArray


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """The times that the counted requests saw, and how busy the engine was.

    requests       times of all requests, counted or not
    missed         the run ended early: a P95 target is missed, percentiles are those of the requests seen until then
    busy           share of time that the busiest stage works
    worked_s       how long a mean stage worked; of replicas that ran side by side, and of attention groups, all together
    mean_batch     sequences that are decoding, averaged over time; of several attention groups those of a mean one
    mean_waiting   requests waiting for admission, averaged over time; as well
    peak_running   most requests running at once, in the fullest attention group
    evictions      how often a request was evicted
    groups         attention groups of the replica
    one_run        percentiles of this run are asked about, not of runs like it
    """

    requests: RequestTimes
    missed: bool
    duration_s: float
    busy: float
    worked_s: float
    mean_batch: float
    mean_waiting: float
    peak_running: int
    steps: int
    evictions: int
    groups: int = 1
    one_run: bool = False

    @cached_property
    def ttft_s(self) -> FloatArray:
        """Time to first token of each counted request, in order of arrival, queueing included."""
        times = self.requests
        started = times.counted & np.isfinite(times.first_s)
        return np.asarray(times.first_s[started] - times.arrival_s[started])

    @cached_property
    def tpot_s(self) -> FloatArray:
        """(last token - first token) / (output tokens - 1), of counted requests with more than one output token."""
        times = self.requests
        several = self._ended & (times.output_tokens > 1)
        return np.asarray((times.last_s[several] - times.first_s[several]) / (times.output_tokens[several] - 1))

    @cached_property
    def end_to_end_s(self) -> FloatArray:
        """Time from arrival to the last token of each counted request."""
        return np.asarray(self.requests.last_s[self._ended] - self.requests.arrival_s[self._ended])

    @cached_property
    def answered_s(self) -> FloatArray:
        """When the last token of each counted request came."""
        return np.asarray(self.requests.last_s[self._ended])

    @property
    def request_s(self) -> float:
        """The seconds that a mean stage works for one request; those under way at the end of the run count half.

        Infinite where a run ended before any had its first token.
        """
        answered = np.isfinite(self.requests.last_s)
        under_way = np.isfinite(self.requests.first_s) & ~answered
        requests = float(np.count_nonzero(answered) + np.count_nonzero(under_way) / 2.0)
        return self.worked_s / requests if requests > 0.0 else math.inf

    @property
    def _ended(self) -> BoolArray:
        return np.asarray(self.requests.counted & np.isfinite(self.requests.last_s))

    def ttft(self, probability: float) -> Percentile:
        """Percentile of the time to first token."""
        return self._of(self.ttft_s, probability)

    def tpot(self, probability: float) -> Percentile:
        """Percentile of the time per output token; nothing where no request has a second token."""
        return self._of(self.tpot_s, probability) if len(self.tpot_s) else Percentile(0.0, 0.0, 0.0)

    def end_to_end(self, probability: float) -> Percentile:
        """Percentile of the time from arrival to the last token."""
        return self._of(self.end_to_end_s, probability)

    def _of(self, times_s: FloatArray, probability: float) -> Percentile:
        return run_percentile(times_s, probability) if self.one_run else percentile(times_s, probability)


def pooled(results: Sequence[SimulationResult]) -> SimulationResult:
    """Replicas that ran side by side as one result, requests in order of arrival; figures are those of a mean replica."""
    if len(results) == 1:
        return results[0]
    parts = [result.requests for result in results]
    order = np.argsort(np.concatenate([part.arrival_s for part in parts]), kind="stable")
    merged = RequestTimes(
        **{field.name: np.concatenate([getattr(part, field.name) for part in parts])[order] for field in fields(RequestTimes)}
    )
    return SimulationResult(
        requests=merged,
        missed=any(result.missed for result in results),
        duration_s=max(result.duration_s for result in results),
        busy=fmean(result.busy for result in results),
        worked_s=sum(result.worked_s for result in results),
        mean_batch=fmean(result.mean_batch for result in results),
        mean_waiting=fmean(result.mean_waiting for result in results),
        peak_running=max(result.peak_running for result in results),
        steps=sum(result.steps for result in results),
        evictions=sum(result.evictions for result in results),
        groups=results[0].groups,
        one_run=all(result.one_run for result in results),
    )
