from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.queueing.load import Load, TokenCount, in_turn, poisson_stream, request_stream

FIXED = (TokenCount(100.0), TokenCount(10.0))


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("split", [1, 4])
def test_gaps_have_the_rate_and_variation_of_a_split_process(cv: float, split: int) -> None:
    """Of a renewal process split at random over n, one part has squared variation 1 + (cv^2 - 1) / n."""
    stream = request_stream(Load(5.0, *FIXED, cv=cv), requests=200_000, seed=0, split=split)
    gaps = np.diff(stream.arrival_s)
    assert np.mean(gaps) == pytest.approx(1.0 / 5.0, rel=0.02)
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(np.sqrt(1.0 + (cv**2 - 1.0) / split), rel=0.03)


@pytest.mark.parametrize("cv", [1.0, 2.0])
def test_gaps_in_turn_are_those_of_every_nth_request(cv: float) -> None:
    replicas, rate = 4, 5.0
    whole = request_stream(Load(replicas * rate, *FIXED, cv=cv), requests=400_000, seed=0)
    dealt = np.diff(whole.arrival_s[::replicas])
    gaps = np.diff(request_stream(in_turn(Load(rate, *FIXED, cv=cv), replicas), requests=100_000, seed=1).arrival_s)
    places = [0.05, 0.25, 0.5, 0.75, 0.95, 0.99]
    np.testing.assert_allclose(np.quantile(gaps, places), np.quantile(dealt, places), rtol=0.03)


def test_another_rate_only_stretches_time() -> None:
    slow, fast = (request_stream(Load(rate, *FIXED, cv=2.0), requests=50, seed=3) for rate in (1.0, 4.0))
    np.testing.assert_allclose(slow.arrival_s, 4.0 * fast.arrival_s)
    np.testing.assert_allclose(slow.faster(4.0).arrival_s, fast.arrival_s)


def test_variation_one_is_a_poisson_process() -> None:
    load = Load(2.0, *FIXED)
    np.testing.assert_array_equal(
        request_stream(load, requests=20, seed=1, split=3).arrival_s, poisson_stream(load, requests=20, seed=1).arrival_s
    )


@given(st.lists(st.integers(1, 500), min_size=1, max_size=40))
def test_empirical_counts_are_those_seen(values: list[int]) -> None:
    count = TokenCount.empirical(values)
    assert count.mean == pytest.approx(np.mean(values))
    assert count.second_moment == pytest.approx(np.mean(np.square(values)))
    assert count.is_fixed == (len(set(values)) == 1)
    middle = (np.arange(len(values)) + 0.5) / len(values)
    assert list(count.quantile(middle)) == sorted(values)
    assert set(count.sample(np.linspace(0.001, 0.999, 50))) <= set(values)


def test_a_share_of_prompts_is_cached() -> None:
    stream = request_stream(Load(1.0, *FIXED, cached_share=0.25), requests=3, seed=0)
    assert stream.cached_tokens is not None
    assert list(stream.cached_tokens) == [25, 25, 25]


@pytest.mark.parametrize("change", [{"cv": 0.0}, {"cv": float("inf")}, {"cached_share": 1.5}, {"requests_per_s": 0.0}])
def test_impossible_loads_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(WorkloadError):
        Load(**({"requests_per_s": 1.0, "prompt": FIXED[0], "output": FIXED[1]} | change))


def test_counts_start_at_one() -> None:
    for values in ((), (0, 4)):
        with pytest.raises(WorkloadError, match="token counts"):
            TokenCount.empirical(values)
