"""Percentiles of mixtures."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.costmodels.queueing.load import WeightedObservations, mixture_mean, mixture_percentile
from meshwright.costmodels.queueing.results import percentile


def parts(seed: int, n: int = 2000) -> list[WeightedObservations]:
    """A third of all take a second on average, two thirds three."""
    generator = np.random.default_rng(seed)
    return [
        WeightedObservations(1.0, generator.exponential(1.0, n)),
        WeightedObservations(2.0, generator.exponential(3.0, 2 * n)),
    ]


def test_one_part_is_itself() -> None:
    observed = parts(1)[0].observations
    assert mixture_percentile([WeightedObservations(0.3, observed)], 0.95) == percentile(observed, 0.95)


def test_a_part_counts_by_its_share_however_many_it_has() -> None:
    few, many = parts(2)
    found = mixture_percentile([few, many], 0.95)
    below = np.mean(few.observations <= found.value) / 3.0 + np.mean(many.observations <= found.value) * 2.0 / 3.0
    assert below == pytest.approx(0.95, abs=1e-3)
    repeated = WeightedObservations(many.share, np.repeat(many.observations, 5))
    assert mixture_percentile([few, repeated], 0.95).value == found.value
    alone = [percentile(part.observations, 0.95).value for part in (few, many)]
    assert alone[0] < found.value < alone[1]
    assert found.low < found.value < found.high
    assert mixture_mean([few, many]) == pytest.approx(np.mean(few.observations) / 3.0 + np.mean(many.observations) * 2.0 / 3.0)


def test_intervals_hold_the_truth_at_least_as_often_as_they_say() -> None:
    # 1 - exp(-x) / 3 - 2 exp(-x / 3) / 3 = 0.95.
    truth = 7.77918
    assert np.exp(-truth) / 3.0 + 2.0 * np.exp(-truth / 3.0) / 3.0 == pytest.approx(0.05, rel=1e-3)
    intervals = [mixture_percentile(parts(seed), 0.95) for seed in range(200)]
    covered = np.mean([found.low <= truth <= found.high for found in intervals])
    # Streams are independent here, so that errors that are taken to add up cover more than 90%.
    assert 0.88 <= covered <= 1.0
    assert np.median([found.high - found.low for found in intervals]) < 1.2


def test_too_few_observations_say_nothing_of_the_ends() -> None:
    found = mixture_percentile([WeightedObservations(0.5, np.ones(10)), WeightedObservations(0.5, np.full(10, 2.0))], 0.95)
    assert (found.value, found.low, found.high) == (2.0, -np.inf, np.inf)
