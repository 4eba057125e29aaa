from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.queueing.load import Load, TokenCount, cached_tokens, poisson_stream
from meshwright.costmodels.queueing.simulation.replica import (
    Admission,
    BatchLimits,
    Scheduling,
    Targets,
    Window,
    pooled,
    simulate,
    simulate_closed_loop,
)
from tests.unit.costmodels.queueing.reference_engine import ReferenceEngine
from tests.unit.costmodels.queueing.simulation import requests, stream_of
from tests.unit.costmodels.queueing.tables import linear_times

ALL = Window(warm_up=0.0, cool_down=0.0)
TIMES = linear_times(fixed_s=5e-3, token_s=1e-5, kv_token_s=1e-8, pair_s=1e-9, logit_s=2e-6)


def wait_of_single_server(rate: float, prompt: TokenCount, *, requests: int) -> float:
    """Mean wait where each request is one step of its own, token_s a prompt token."""
    times = linear_times(token_s=1e-3, max_tokens=40_000, max_sequences=1)
    stream = poisson_stream(Load(rate, prompt, TokenCount(1.0)), requests=requests, seed=1)
    limits = BatchLimits(sequences=1, step_tokens=40_000, kv_tokens=10**9, scheduling=Scheduling.PREFILL_FIRST)
    result = simulate(times, stream, limits)
    first, end = Window().measured(requests)
    return float(np.mean(result.ttft_s - 1e-3 * stream.prompt_tokens[first:end]))


@pytest.mark.parametrize("utilisation", [0.3, 0.7])
def test_deterministic_service_waits_as_m_d_1(utilisation: float) -> None:
    service_s = 0.1
    expected = utilisation * service_s / (2 * (1 - utilisation))
    wait = wait_of_single_server(utilisation / service_s, TokenCount(100.0), requests=600_000)
    assert wait == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("utilisation", [0.3, 0.6])
def test_lognormal_service_waits_as_pollaczek_khinchine(utilisation: float) -> None:
    prompt = TokenCount(1000.0, sigma=0.5)
    rate = utilisation / 1.0
    # Moments of the prompts drawn, which are rounded and cut.
    drawn = poisson_stream(Load(rate, prompt, TokenCount(1.0)), requests=600_000, seed=1).prompt_tokens * 1e-3
    expected = rate * np.mean(drawn**2) / (2 * (1 - rate * np.mean(drawn)))
    assert wait_of_single_server(rate, prompt, requests=600_000) == pytest.approx(expected, rel=0.02)


def test_a_request_alone_takes_the_sum_of_its_steps() -> None:
    times = linear_times(fixed_s=1.0, token_s=0.01, kv_token_s=0.001, pair_s=1e-4, logit_s=0.5)
    result = simulate(times, stream_of((0.0, 10, 3)), BatchLimits(4, 6, 100), window=ALL)
    chunks = (1.0 + 0.06 + 1e-4 * 21) + (1.0 + 0.04 + 1e-4 * (4 * 6 + 10) + 0.5)
    assert result.ttft_s[0] == pytest.approx(chunks)
    decode = (1.0 + 0.01 + 0.5 + 0.001 * 11) + (1.0 + 0.01 + 0.5 + 0.001 * 12)
    assert result.tpot_s[0] == pytest.approx(decode / 2)
    assert result.end_to_end_s[0] == pytest.approx(chunks + decode)


@settings(max_examples=150, deadline=None)
@given(
    requests=requests,
    sequences=st.integers(1, 12),
    step_tokens=st.integers(90, 150),
    kv_tokens=st.integers(95, 400),
    scheduling=st.sampled_from(Scheduling),
    admission=st.sampled_from(Admission),
)
def test_every_token_time_is_that_of_a_plain_simulation(
    requests: list[tuple[float, int, int]],
    sequences: int,
    step_tokens: int,
    kv_tokens: int,
    scheduling: Scheduling,
    admission: Admission,
) -> None:
    stream = stream_of(*requests)
    limits = BatchLimits(sequences, step_tokens, kv_tokens, scheduling, admission)
    result = simulate(TIMES, stream, limits, window=ALL)
    first_s, last_s = ReferenceEngine(TIMES, stream, limits).run()
    np.testing.assert_allclose(result.ttft_s + stream.arrival_s, first_s, rtol=1e-9)
    np.testing.assert_allclose(result.answered_s, last_s, rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(requests=requests, step_tokens=st.integers(8, 40))
def test_small_chunks_are_those_of_a_plain_simulation(requests: list[tuple[float, int, int]], step_tokens: int) -> None:
    stream, limits = stream_of(*requests), BatchLimits(6, step_tokens, 300, admission=Admission.PREEMPT)
    result = simulate(TIMES, stream, limits, window=ALL)
    first_s, last_s = ReferenceEngine(TIMES, stream, limits).run()
    np.testing.assert_allclose(result.ttft_s + stream.arrival_s, first_s, rtol=1e-9)
    np.testing.assert_allclose(result.answered_s, last_s, rtol=1e-9)


@settings(max_examples=100, deadline=None)
@given(
    requests=requests,
    shares=st.lists(st.sampled_from([0.5, 1.0, 1.7]), min_size=2, max_size=4),
    sequences=st.integers(2, 12),
    step_tokens=st.integers(90, 150),
    kv_tokens=st.integers(95, 400),
    admission=st.sampled_from(Admission),
)
def test_every_token_time_of_a_pipeline_is_that_of_a_plain_simulation(
    requests: list[tuple[float, int, int]],
    shares: list[float],
    sequences: int,
    step_tokens: int,
    kv_tokens: int,
    admission: Admission,
) -> None:
    """Stages differ, so that some are waited for; some are alike, so that they are computed once."""
    share = np.array(shares)
    by_stage = {
        name: getattr(TIMES, name)[0] * share.reshape(-1, *[1] * getattr(TIMES, name)[0].ndim)
        for name in ("tokens_s", "logits_s", "decode_s", "prefill_s_per_pair", "prefill_launch_s", "least_prompt_s")
    }
    times = replace(TIMES, **by_stage)
    stream, limits = stream_of(*requests), BatchLimits(sequences, step_tokens, kv_tokens, admission=admission)
    result = simulate(times, stream, limits, window=ALL)
    first_s, last_s = ReferenceEngine(times, stream, limits).run()
    np.testing.assert_allclose(result.ttft_s + stream.arrival_s, first_s, rtol=1e-9)
    np.testing.assert_allclose(result.answered_s, last_s, rtol=1e-9)


def test_two_requests_share_a_pipeline() -> None:
    times = linear_times(fixed_s=2.0, stages=2, max_tokens=64)
    result = simulate(times, stream_of((0.0, 8, 2), (0.0, 8, 2)), BatchLimits(2, 8, 100), window=ALL)
    # Stages take 1 s each: the second request enters stage one when the first leaves it, and follows it all the way.
    assert result.ttft_s.tolist() == pytest.approx([2.0, 3.0])
    assert result.answered_s.tolist() == pytest.approx([4.0, 5.0])


def test_same_seed_same_result() -> None:
    load, limits = Load(8.0, TokenCount(500.0, 0.6), TokenCount(80.0, 0.4)), BatchLimits(32, 2048, 40_000)
    runs = [simulate(TIMES, poisson_stream(load, requests=500, seed=seed), limits) for seed in (3, 3, 4)]
    assert np.array_equal(runs[0].ttft_s, runs[1].ttft_s)
    assert np.array_equal(runs[0].tpot_s, runs[1].tpot_s)
    assert not np.array_equal(runs[0].ttft_s, runs[2].ttft_s)


@settings(max_examples=15, deadline=None)
@given(rate=st.floats(1.0, 8.0), factor=st.floats(1.3, 3.0), admission=st.sampled_from(Admission))
def test_a_higher_rate_is_never_better(rate: float, factor: float, admission: Admission) -> None:
    limits = BatchLimits(16, 2048, 30_000, admission=admission)
    slow, fast = (
        simulate(TIMES, poisson_stream(Load(r, TokenCount(800.0), TokenCount(60.0)), requests=3000, seed=0), limits)
        for r in (rate, rate * factor)
    )
    assert fast.ttft(0.95).high >= slow.ttft(0.95).low
    assert fast.tpot(0.95).high >= slow.tpot(0.95).low


@settings(max_examples=15, deadline=None)
@given(kv_tokens=st.integers(2_000, 20_000), more=st.integers(1, 20_000))
def test_a_larger_cache_never_holds_fewer(kv_tokens: int, more: int) -> None:
    stream = poisson_stream(Load(20.0, TokenCount(800.0), TokenCount(60.0)), requests=400, seed=0)
    small, large = (simulate(TIMES, stream, BatchLimits(64, 2048, kv)) for kv in (kv_tokens, kv_tokens + more))
    assert large.peak_running >= small.peak_running
    assert large.duration_s <= small.duration_s * (1 + 1e-9)


def test_eviction_costs_time_and_loses_no_token() -> None:
    stream = stream_of(*[(0.0, 50, 50)] * 10)
    limits = [BatchLimits(10, 600, kv_tokens, admission=Admission.PREEMPT) for kv_tokens in (2000, 600)]
    roomy, tight = (simulate(TIMES, stream, limit, window=ALL) for limit in limits)
    assert roomy.evictions == 0
    assert tight.evictions > 0
    assert tight.duration_s > roomy.duration_s
    assert len(tight.end_to_end_s) == 10


def test_a_missed_target_ends_the_run_only_when_it_is_sure() -> None:
    load, limits = Load(6.0, TokenCount(800.0), TokenCount(60.0)), BatchLimits(16, 2048, 30_000)
    stream = poisson_stream(load, requests=2000, seed=0)
    whole = simulate(TIMES, stream, limits)
    p95 = whole.ttft(0.95).value
    assert not simulate(TIMES, stream, limits, targets=Targets(ttft_s=p95 * (1 + 1e-9))).missed
    early = simulate(TIMES, stream, limits, targets=Targets(ttft_s=p95 * (1 - 1e-6)))
    assert early.missed
    assert early.duration_s <= whole.duration_s


def test_closed_loop_keeps_its_clients_busy() -> None:
    stream = poisson_stream(Load(1.0, TokenCount(100.0), TokenCount(20.0)), requests=400, seed=0)
    result = simulate_closed_loop(TIMES, stream, BatchLimits(64, 2048, 10**6), concurrency=8)
    assert result.peak_running == 8
    # Little's law: clients = answers per second x time to answer.
    rate = 1.0 / np.mean(np.diff(np.sort(result.answered_s)))
    assert rate * np.mean(result.end_to_end_s) == pytest.approx(8, rel=0.05)


def test_a_client_of_a_closed_loop_takes_its_time() -> None:
    stream = stream_of(*[(0.0, 100, 5)] * 6)
    limits = BatchLimits(2, 2048, 10**6)
    at_once, later = (simulate_closed_loop(TIMES, stream, limits, concurrency=2, delay_s=d, window=ALL) for d in (0.0, 0.25))
    # Clients keep in step: the same three rounds, each after a delay, which is no part of a time to first token.
    assert later.ttft_s == pytest.approx(at_once.ttft_s)
    assert later.duration_s == pytest.approx(at_once.duration_s + 3 * 0.25)
    assert later.tpot_s == pytest.approx(at_once.tpot_s)


@pytest.mark.parametrize("stages", [1, 3])
def test_a_step_with_a_prompt_waits_for_the_host(stages: int) -> None:
    stream = stream_of(*[(0.03 * i, 200, 12) for i in range(20)])
    limits = BatchLimits(6, 512, 10**6)
    times = linear_times(fixed_s=5e-3, token_s=1e-5, least_prompt_s=0.04, stages=stages)
    result = simulate(times, stream, limits, window=ALL)
    first_s, last_s = ReferenceEngine(times, stream, limits).run()
    assert result.requests.first_s == pytest.approx(first_s)
    assert result.requests.last_s == pytest.approx(last_s)
    # A lone prompt takes the host's 40 ms, not the 7 ms of its kernels.
    alone = simulate(times, stream_of((0.0, 200, 1)), limits, window=ALL)
    assert alone.ttft_s == pytest.approx([0.04])


def test_busy_share_is_the_load_of_a_single_server() -> None:
    times = linear_times(fixed_s=0.05)
    stream = poisson_stream(Load(10.0, TokenCount(10.0), TokenCount(1.0)), requests=20_000, seed=0)
    result = simulate(times, stream, BatchLimits(1, 10, 1000))
    assert result.busy == pytest.approx(0.5, rel=0.03)
    # Little's law again: waiting requests = rate x mean wait; 0.5 x 0.05 / (2 x 0.5) = 25 ms for M/D/1.
    assert result.mean_waiting == pytest.approx(10.0 * 0.025, rel=0.06)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_tokens": 99}, "longest request"),
        ({"scheduling": Scheduling.PREFILL_FIRST, "step_tokens": 40}, "fit in one step"),
        ({"sequences": 0}, "sequences at once"),
        ({"sequences": 65}, "sequences at once"),
        ({"step_tokens": 8193}, "so many tokens"),
    ],
)
def test_impossible_limits_are_refused(change: dict[str, object], message: str) -> None:
    limits = replace(BatchLimits(8, 128, 1000), **change)
    with pytest.raises(WorkloadError, match=message):
        simulate(TIMES, stream_of((0.0, 60, 40)), limits)


def test_cached_prefixes_are_not_computed_again() -> None:
    times = linear_times(token_s=0.01, pair_s=1e-4)
    whole = stream_of((0.0, 10, 1))
    cached = replace(whole, cached_tokens=np.array([4]))
    limits = BatchLimits(4, 100, 100)
    assert simulate(times, whole, limits, window=ALL).ttft_s[0] == pytest.approx(0.10 + 1e-4 * 55)
    assert simulate(times, cached, limits, window=ALL).ttft_s[0] == pytest.approx(0.06 + 1e-4 * (6 * 4 + 21))
    # At least the last token of a prompt is computed.
    all_cached = replace(whole, cached_tokens=np.array([10]))
    assert simulate(times, all_cached, limits, window=ALL).ttft_s[0] == pytest.approx(0.01 + 1e-4 * 10)


@settings(max_examples=60, deadline=None)
@given(
    requests=requests, share=st.floats(0.0, 1.0), scheduling=st.sampled_from(Scheduling), admission=st.sampled_from(Admission)
)
def test_cached_prefixes_are_those_of_a_plain_simulation(
    requests: list[tuple[float, int, int]], share: float, scheduling: Scheduling, admission: Admission
) -> None:
    stream = stream_of(*requests)
    stream = replace(stream, cached_tokens=cached_tokens(stream.prompt_tokens, share))
    limits = BatchLimits(6, 100, 200, scheduling, admission)
    result = simulate(TIMES, stream, limits, window=ALL)
    first_s, last_s = ReferenceEngine(TIMES, stream, limits).run()
    np.testing.assert_allclose(result.ttft_s + stream.arrival_s, first_s, rtol=1e-9)
    np.testing.assert_allclose(result.answered_s, last_s, rtol=1e-9)


def test_replicas_side_by_side_make_one_result() -> None:
    stream = poisson_stream(Load(6.0, TokenCount(500.0), TokenCount(40.0)), requests=600, seed=0)
    limits = BatchLimits(32, 2048, 40_000)
    halves = [simulate(TIMES, stream[k::2], limits) for k in range(2)]
    both = pooled(halves)
    assert len(both.ttft_s) == sum(len(half.ttft_s) for half in halves)
    assert sorted(both.ttft_s) == sorted([*halves[0].ttft_s, *halves[1].ttft_s])
    assert np.all(np.diff(both.requests.arrival_s) >= 0.0)
    assert both.mean_batch == pytest.approx(np.mean([half.mean_batch for half in halves]))


def test_busy_time_grows_with_every_first_token() -> None:
    stream = poisson_stream(Load(6.0, TokenCount(500.0), TokenCount(40.0)), requests=300, seed=0)
    result = simulate(TIMES, stream, BatchLimits(32, 2048, 40_000), window=ALL)
    in_order = result.requests.busy_s[np.argsort(result.requests.first_s)]
    assert np.all(np.diff(in_order) >= 0.0)
    assert 0.9 * result.busy * result.duration_s <= in_order[-1] <= result.busy * result.duration_s


@settings(max_examples=100, deadline=None)
@given(
    requests=requests,
    system=st.integers(0, 50),
    hits=st.lists(st.integers(0, 60), min_size=40, max_size=40),
    kv_tokens=st.integers(95, 300),
    admission=st.sampled_from(Admission),
)
def test_shared_tokens_lie_in_the_cache_once(
    requests: list[tuple[float, int, int]], system: int, hits: list[int], kv_tokens: int, admission: Admission
) -> None:
    whole = stream_of(*requests)
    found = np.minimum(np.maximum(hits[: len(whole)], system), whole.prompt_tokens - 1)
    stream = replace(whole, cached_tokens=found, shared_tokens=system)
    limits = BatchLimits(8, 120, kv_tokens, admission=admission)
    result = simulate(TIMES, stream, limits, window=ALL)
    first_s, last_s = ReferenceEngine(TIMES, stream, limits).run()
    np.testing.assert_allclose(result.ttft_s + stream.arrival_s, first_s, rtol=1e-9)
    np.testing.assert_allclose(result.answered_s, last_s, rtol=1e-9)


def test_a_shared_system_prompt_makes_room_for_more_at_once() -> None:
    whole = stream_of(*[(0.0, 100, 10)] * 8)
    own = replace(whole, cached_tokens=np.full(8, 80))
    limits = BatchLimits(8, 1000, 330)
    # 110 tokens each: three at once; 80 once and 30 each: eight.
    assert simulate(TIMES, own, limits, window=ALL).peak_running == 3
    assert simulate(TIMES, replace(own, shared_tokens=80), limits, window=ALL).peak_running == 8
    with pytest.raises(WorkloadError, match="longest request"):
        simulate(TIMES, replace(own, shared_tokens=80), BatchLimits(8, 1000, 109), window=ALL)
