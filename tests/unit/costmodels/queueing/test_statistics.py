from __future__ import annotations

import math

import numpy as np

from meshwright.costmodels.queueing.load import Load, TokenCount, poisson_stream
from meshwright.costmodels.queueing.results import percentile, share_error
from meshwright.costmodels.queueing.simulation.replica import BatchLimits, simulate
from tests.unit.costmodels.queueing.tables import linear_times


def test_value_is_the_smallest_that_enough_do_not_exceed() -> None:
    observations = np.arange(1.0, 101.0)
    assert percentile(observations, 0.95).value == 95.0
    assert percentile(observations[::-1], 0.95).value == 95.0
    assert percentile(np.array([3.0]), 0.95).value == 3.0


def test_too_few_observations_bound_nothing() -> None:
    result = percentile(np.arange(60.0), 0.95)
    assert result.high == math.inf
    assert math.isnan(percentile(np.empty(0), 0.95).value)


def test_a_trend_is_bounded_by_the_largest_seen() -> None:
    result = percentile(np.arange(2000.0), 0.95)
    assert result.low < 1900.0
    assert result.high == 1999.0


def test_interval_of_independent_observations_covers_as_often_as_it_says() -> None:
    generator = np.random.Generator(np.random.PCG64(0))
    truth = -math.log(0.05)
    intervals = [percentile(generator.exponential(1.0, 8000), 0.95) for _ in range(400)]
    covered = np.mean([interval.low <= truth <= interval.high for interval in intervals])
    assert 0.85 <= covered <= 0.95


def test_interval_holds_where_many_observations_are_equal() -> None:
    generator = np.random.Generator(np.random.PCG64(0))
    intervals = [percentile(np.rint(generator.exponential(1.0, 4000)), 0.95) for _ in range(100)]
    assert all(interval.low <= 3.0 <= interval.high for interval in intervals)


def test_sections_that_are_all_alike_are_no_surer_than_independent_observations() -> None:
    n = 8000
    one_in_twenty = np.tile(np.arange(20.0), n // 20)
    assert share_error(one_in_twenty, 18.0) >= 1.6 * math.sqrt(0.05 * 0.95 / n)


def test_interval_of_a_queue_covers_repeated_simulations() -> None:
    times = linear_times(fixed_s=5e-3, token_s=2e-5, kv_token_s=2e-8)
    load, limits = Load(18.0, TokenCount(1000.0), TokenCount(60.0)), BatchLimits(64, 4096, 10**6)
    runs = [simulate(times, poisson_stream(load, requests=4000, seed=seed), limits) for seed in range(100)]
    for observed in ([run.ttft(0.95) for run in runs], [run.tpot(0.95) for run in runs]):
        truth = np.mean([interval.value for interval in observed])
        covered = np.mean([interval.low <= truth <= interval.high for interval in observed])
        assert 0.82 <= covered <= 0.97
