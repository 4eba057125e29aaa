"""The course of a simulated replica over time: requests waiting, requests decoding, and how busy it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.queueing.simulation.replica import SimulationResult

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LoadTimeline:
    """Equal intervals of a run, from 0 to ``end_s``; each figure is a mean over its interval and over the replicas,
    or their attention groups.

    waiting    requests without a first token: in the queue, or with their prompt under way
    decoding   requests between first and last token
    busy       share of time that the busiest stage works
    """

    end_s: float
    waiting: FloatArray
    decoding: FloatArray
    busy: FloatArray


def timeline(results: Sequence[SimulationResult], *, intervals: int) -> LoadTimeline:
    """The timeline of replicas that ran side by side."""
    end_s = max(result.duration_s for result in results)
    edges = np.linspace(0.0, end_s, intervals + 1)
    width = end_s / intervals
    waiting, decoding, busy = (np.zeros(intervals) for _ in range(3))
    for result in results:
        times = result.requests
        arrived, first, last = (_total_since(events, edges) for events in (times.arrival_s, times.first_s, times.last_s))
        waiting += np.diff(arrived - first) / width
        decoding += np.diff(first - last) / width
        busy += np.diff(_busy_until(result, edges)) / width
    n = len(results)
    groups = n * results[0].groups
    return LoadTimeline(end_s, waiting / groups, decoding / groups, np.clip(busy / n, 0.0, 1.0))


def _total_since(events_s: FloatArray, edges: FloatArray) -> FloatArray:
    """At each edge, the time since each event that has happened, added up; its slope is how many have."""
    happened = np.sort(events_s[np.isfinite(events_s)])
    sums = np.concatenate([[0.0], np.cumsum(happened)])
    count = np.searchsorted(happened, edges, side="right")
    return np.asarray(count * edges - sums[count])


def _busy_until(result: SimulationResult, edges: FloatArray) -> FloatArray:
    """Working time up to each edge: known at every first token, linear between."""
    times = result.requests
    seen = np.isfinite(times.first_s)
    order = np.argsort(times.first_s[seen])
    at = np.concatenate([[0.0], times.first_s[seen][order], [result.duration_s]])
    worked = np.concatenate([[0.0], times.busy_s[seen][order], [result.busy * result.duration_s]])
    return np.asarray(np.interp(edges, at, np.maximum.accumulate(worked)))
