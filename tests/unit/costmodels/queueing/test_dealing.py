"""Requests that go to the worker with the fewest: each worker by itself, under what it was dealt, says whether that was so."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.queueing.load import Load, RequestStream, TokenCount, poisson_stream
from meshwright.costmodels.queueing.simulation.dealing import dealt_to_fewest
from meshwright.costmodels.queueing.simulation.replica import Admission, BatchLimits, Scheduling, Window, simulate
from meshwright.costmodels.queueing.step_times import IN_TURN, GroupTimes, StepTimes
from tests.unit.costmodels.queueing.simulation import stream_of
from tests.unit.costmodels.queueing.tables import linear_times

ALL = Window(warm_up=0.0, cool_down=0.0)
ONE_STAGE = linear_times(fixed_s=5e-3, token_s=1e-4)
THREE_STAGES = linear_times(fixed_s=5e-3, token_s=1e-4, stages=3)
FOUR_GROUPS = GroupTimes(
    own=ONE_STAGE,
    groups=4,
    total_grid=np.array([1.0, 1e5]),
    experts_s=np.array([1e-3, 1.0]),
    gathered_s=np.zeros(2),
    exchanged_s=np.zeros(ONE_STAGE.max_tokens + 1),
    shared_s=np.zeros(ONE_STAGE.max_tokens + 1),
    beside_tokens=0,
    dealing=IN_TURN,
)
ROOMY = BatchLimits(32, 1024, 10**6)


def random_stream(rate: float, requests: int = 1200) -> RequestStream:
    return poisson_stream(Load(rate, TokenCount(200.0, 0.5), TokenCount(40.0, 0.5)), requests=requests, seed=3)


@pytest.mark.parametrize(
    ("times", "limits", "rate"),
    [
        (ONE_STAGE, ROOMY, 60.0),
        (ONE_STAGE, BatchLimits(32, 1024, 6000, admission=Admission.PREEMPT), 90.0),
        (ONE_STAGE, BatchLimits(8, 4096, 10**6, Scheduling.PREFILL_FIRST), 60.0),
        (THREE_STAGES, ROOMY, 150.0),
        (FOUR_GROUPS, ROOMY, 60.0),
        (FOUR_GROUPS, BatchLimits(8, 1024, 4000, admission=Admission.PREEMPT), 90.0),
    ],
)
def test_nobody_held_fewer_when_a_request_was_dealt(times: StepTimes | GroupTimes, limits: BatchLimits, rate: float) -> None:
    stream, workers = random_stream(rate), 3
    parts = dealt_to_fewest(times, stream, limits, workers=workers)
    assert sum(map(len, parts)) == len(stream)
    place = {arrival_s: i for i, arrival_s in enumerate(stream.arrival_s)}
    of, ends_s = np.zeros(len(stream), dtype=np.int64), np.zeros(len(stream))
    for worker, part in enumerate(parts):
        members = [place[arrival_s] for arrival_s in part.arrival_s]
        of[members] = worker
        ends_s[members] = simulate(times, part, limits, window=ALL).requests.last_s
    for request, now in enumerate(stream.arrival_s):
        held = np.bincount(of[:request][ends_s[:request] >= now], minlength=workers)
        assert held[of[request]] == held.min(), request


def test_of_workers_that_hold_as_many_the_next_in_turn_gets_the_request() -> None:
    """Four that come at once go round; the worker of the short answer is free first and gets the fifth."""
    stream = stream_of((0.0, 100, 9), (0.0, 100, 2), (0.0, 100, 9), (0.5, 10, 2), (9.0, 10, 2))
    first, second, third = dealt_to_fewest(ONE_STAGE, stream, ROOMY, workers=3)
    assert first.arrival_s.tolist() == [0.0, 0.5]
    assert second.arrival_s.tolist() == [0.0, 9.0]
    assert third.arrival_s.tolist() == [0.0]


def test_a_long_answer_keeps_new_requests_away() -> None:
    slow = linear_times(fixed_s=1.0)
    stream = stream_of((0.0, 10, 60), (0.1, 10, 2), (10.0, 10, 2), (20.0, 10, 2), (30.0, 10, 2))
    busy, free = dealt_to_fewest(slow, stream, ROOMY, workers=2)
    assert busy.arrival_s.tolist() == [0.0]
    assert free.arrival_s.tolist() == [0.1, 10.0, 20.0, 30.0]


def test_workers_without_a_request_are_left_out() -> None:
    assert len(dealt_to_fewest(ONE_STAGE, stream_of((0.0, 10, 2)), ROOMY, workers=4)) == 1


def test_a_request_that_no_worker_can_run_is_refused() -> None:
    with pytest.raises(WorkloadError, match="longest request"):
        dealt_to_fewest(ONE_STAGE, stream_of((0.0, 100, 100)), BatchLimits(4, 512, 150), workers=2)
