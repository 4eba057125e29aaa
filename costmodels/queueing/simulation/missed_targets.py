"""The targets that a run is already sure to miss, so that it can end early."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.costmodels.queueing.simulation.engine_state import DECODING, NOBODY, IntArray, RecordArray, compiled
from meshwright.costmodels.queueing.simulation.step_forming import KNOWN, MISSED_TPOT, MISSED_TTFT, OVERDUE


class Promise(NamedTuple):
    """Counted requests [first, end), their targets, and how many of them may miss each."""

    first: int
    end: int
    ttft_s: float
    tpot_s: float
    may_miss_ttft: int
    may_miss_tpot: int


@compiled
def count_late_starts(requests: RecordArray, counters: IntArray, promise: Promise, now: float) -> None:
    """Count the requests that have no first token in time, whether or not they have one now; each once, in order of arrival."""
    request = counters[OVERDUE]
    while request < counters[KNOWN] and request < promise.end and now - requests[request].arrival_s > promise.ttft_s:
        # A first token that has not come is nan, and not in time either.
        in_time = requests[request].first_s - requests[request].arrival_s <= promise.ttft_s
        if request >= promise.first and not in_time:
            counters[MISSED_TTFT] += 1
        request += 1
    counters[OVERDUE] = request


@compiled
def is_missed(counters: IntArray, promise: Promise) -> bool:
    """Return True if more requests have missed a target than may."""
    late_starts, slow = counters[MISSED_TTFT], counters[MISSED_TPOT]
    return late_starts > promise.may_miss_ttft or slow > promise.may_miss_tpot  # type: ignore[no-any-return]


@compiled
def is_sure_to_miss(requests: RecordArray, slots: RecordArray, counters: IntArray, promise: Promise, now: float) -> bool:
    """Return True if more requests miss the target per token than may. Counts those that have missed it, and those that will
    because they are decoding for too long."""
    missed = counters[MISSED_TPOT]
    for slot in range(len(slots)):
        request = slots[slot].newest
        while request != NOBODY:
            decoding_s = now - requests[request].first_s if requests[request].phase == DECODING else 0.0
            if promise.first <= request < promise.end and decoding_s > promise.tpot_s * (requests[request].answer - 1):
                missed += 1
            request = requests[request].older
    return missed > promise.may_miss_tpot  # type: ignore[no-any-return]
