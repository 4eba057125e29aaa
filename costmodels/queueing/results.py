"""The results of a simulation: times of every request, and how busy the engine was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from statistics import fmean

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.queueing.statistics import Percentile, percentile, run_percentile

FloatArray = npt.NDArray[np.float64]
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
    )
