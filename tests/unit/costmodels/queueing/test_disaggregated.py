from __future__ import annotations

import numpy as np
import pytest

from meshwright.costmodels.queueing.load import Load, TokenCount, poisson_stream
from meshwright.costmodels.queueing.router import Router
from meshwright.costmodels.queueing.simulation.disaggregated import (
    CacheTransfer,
    Pool,
    simulate_decode,
    simulate_prefill,
)
from meshwright.costmodels.queueing.simulation.replica import BatchLimits, Window, simulate
from tests.unit.costmodels.queueing.simulation import stream_of
from tests.unit.costmodels.queueing.tables import linear_times

ALL = Window(warm_up=0.0, cool_down=0.0)
LIMITS = BatchLimits(16, 4096, 10**6)
TIMES = linear_times(fixed_s=5e-3, token_s=1e-4)
AT_ONCE = CacheTransfer(latency_s=0.0, token_s=0.0)


def pool(workers: int, limits: BatchLimits = LIMITS) -> Pool:
    return Pool(TIMES, limits, workers)


def test_one_request_counted_by_hand() -> None:
    stream = stream_of((1.0, 100, 3))
    prefilled = simulate_prefill(pool(1), CacheTransfer(latency_s=0.5, token_s=0.01), stream, seed=0)
    assert prefilled.done_s[0] == pytest.approx(1.0 + 5e-3 + 100e-4)
    assert prefilled.arrived_s[0] == pytest.approx(prefilled.done_s[0] + 1.0 + 0.5)
    whole = simulate_decode(pool(1), prefilled, stream, seed=0, window=ALL).whole
    step_s = 5e-3 + 1e-4
    assert whole.ttft_s[0] == pytest.approx(prefilled.arrived_s[0] + step_s - 1.0)
    assert whole.tpot_s[0] == pytest.approx(step_s)


def test_transfers_of_one_worker_wait_for_one_another() -> None:
    stream = stream_of((0.0, 100, 2), (0.0, 50, 2))
    prefilled = simulate_prefill(pool(1), CacheTransfer(latency_s=0.0, token_s=0.1), stream, seed=0)
    done_s = 5e-3 + 150e-4
    assert prefilled.arrived_s.tolist() == pytest.approx([done_s + 10.0, done_s + 15.0])


def test_every_request_comes_out_of_both_phases() -> None:
    stream = poisson_stream(Load(30.0, TokenCount(300.0, 0.5), TokenCount(40.0, 0.5)), requests=800, seed=0)
    prefilled = simulate_prefill(pool(3), CacheTransfer(1e-3, 1e-6), stream, seed=1)
    result = simulate_decode(pool(2), prefilled, stream, seed=1, window=ALL)
    assert np.all(prefilled.done_s > stream.arrival_s)
    assert np.all(prefilled.arrived_s > prefilled.done_s)
    assert np.all(result.whole.requests.first_s > prefilled.arrived_s)
    assert len(result.whole.end_to_end_s) == 800
    assert sum(len(run.requests.first_s) for run in result.decode) == 800
    assert sum(len(run.requests.first_s) for run in result.prefill) == 800


def test_requests_in_turn_share_workers_evenly() -> None:
    """Four prompts at once on two workers: two each, one after the other; drawn ones may meet on one worker."""
    stream = stream_of(*[(0.0, 100, 2)] * 4)
    one = BatchLimits(1, 100, 10**6)
    in_turn = simulate_prefill(Pool(TIMES, one, 2, Router.ROUND_ROBIN), AT_ONCE, stream, seed=0)
    step_s = 5e-3 + 100e-4
    assert in_turn.done_s.tolist() == pytest.approx([step_s, step_s, 2 * step_s, 2 * step_s])
    assert [len(run.requests.first_s) for run in in_turn.runs] == [2, 2]


def test_prefill_workers_are_single_servers() -> None:
    """Prompts of one token limit each, one at a time: an M/D/1 queue of rate lambda / workers."""
    load = Load(8.0, TokenCount(100.0), TokenCount(1.0))
    stream = poisson_stream(load, requests=200_000, seed=3)
    times = linear_times(token_s=1e-3, max_sequences=1)
    one = BatchLimits(1, 100, 10**6)
    prefilled = simulate_prefill(Pool(times, one, 2), AT_ONCE, stream, seed=0)
    wait_s = np.mean(prefilled.done_s - stream.arrival_s) - 0.1
    utilisation = 4.0 * 0.1
    assert wait_s == pytest.approx(utilisation * 0.1 / (2 * (1 - utilisation)), rel=0.03)


def test_decode_workers_alone_are_engines_with_cached_prompts() -> None:
    """Prompts that take no time leave the decode workers what a plain engine with a full prefix cache sees."""
    stream = poisson_stream(Load(20.0, TokenCount(300.0), TokenCount(40.0)), requests=400, seed=0)
    instant = Pool(linear_times(), LIMITS, 1)
    result = simulate_decode(pool(1), simulate_prefill(instant, AT_ONCE, stream, seed=0), stream, seed=0, window=ALL)
    cached = type(stream)(stream.arrival_s, stream.prompt_tokens, stream.output_tokens, stream.prompt_tokens - 1)
    np.testing.assert_allclose(result.whole.ttft_s, simulate(TIMES, cached, LIMITS, window=ALL).ttft_s)


def test_more_workers_never_wait_longer() -> None:
    stream = poisson_stream(Load(40.0, TokenCount(400.0), TokenCount(40.0)), requests=3000, seed=0)
    few, many = (simulate_prefill(pool(workers), AT_ONCE, stream, seed=0) for workers in (2, 6))
    assert np.quantile(many.done_s - stream.arrival_s, 0.95) <= np.quantile(few.done_s - stream.arrival_s, 0.95)
