"""Attention groups that step together, against a plain simulation and what must hold of any."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costmodels.queueing.analytic.capacity import demand_of, least_work_s
from meshwright.costmodels.queueing.load import Load, RequestStream, TokenCount, poisson_stream
from meshwright.costmodels.queueing.simulation.disaggregated import CacheTransfer, Pool, simulate_prefill
from meshwright.costmodels.queueing.simulation.replica import (
    Admission,
    BatchLimits,
    Scheduling,
    Targets,
    Window,
    simulate,
    simulate_closed_loop,
)
from meshwright.costmodels.queueing.step_times import IN_TURN, Dealing, GroupTimes, StepTimes, convex_below
from tests.unit.costmodels.queueing.reference_groups import ReferenceGroups
from tests.unit.costmodels.queueing.tables import linear_times

ALL = Window(warm_up=0.0, cool_down=0.0)
SHORT_QUEUES = Dealing(4, 1)


def of_groups(own: StepTimes, groups: int, *, dealing: Dealing = IN_TURN, exchange_s: float = 3e-7) -> GroupTimes:
    """Experts that grow less and less with all tokens, and then evenly; a shared expert that passes them now and then."""
    total = np.unique(np.concatenate([2.0 ** np.arange(16), groups * np.arange(1.0, 9.0)]))
    tokens = np.arange(own.max_tokens + 1.0)
    return GroupTimes(
        own=own,
        groups=groups,
        total_grid=total,
        experts_s=2e-4 * (1.0 - np.exp(-total / 20.0)) + 1e-7 * total,
        gathered_s=1e-5 + 1e-7 * total,
        exchanged_s=3e-5 + exchange_s * tokens,
        shared_s=1e-4 + 5e-7 * tokens,
        beside_tokens=24,
        dealing=dealing,
    )


def bent_times() -> StepTimes:
    """Attention whose slope changes with the cache, so that the slowest group changes while all decode."""
    times = linear_times(fixed_s=5e-3, token_s=1e-5, kv_token_s=1e-8, pair_s=1e-9, logit_s=2e-6, least_prompt_s=6e-3)
    grid = np.array([8.0, 24.0, 64.0, 1e6])
    by_length = np.array([1e-5, 2e-5, 2e-4, 5e-1])
    decode_s = np.sqrt(np.arange(times.max_sequences + 1.0))[None, :, None] * by_length
    return replace(times, kv_grid=grid, decode_s=decode_s)


def stream_of(requests: list[tuple[float, int, int]]) -> RequestStream:
    arrival, prompt, output = zip(*requests, strict=True)
    return RequestStream(np.array(arrival), np.array(prompt), np.array(output))


requests = st.lists(st.tuples(st.floats(0.0, 0.1), st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=50).map(
    lambda rows: [(sum(gap for gap, _, _ in rows[: i + 1]), p, o) for i, (_, p, o) in enumerate(rows)]
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    requests=requests,
    groups=st.integers(2, 6),
    dealing=st.sampled_from([IN_TURN, SHORT_QUEUES, Dealing(1, 1)]),
    sequences=st.integers(1, 8),
    step_tokens=st.integers(101, 150),
    kv_tokens=st.integers(101, 300),
    scheduling=st.sampled_from(Scheduling),
    admission=st.sampled_from(Admission),
    clients=st.sampled_from([None, 1, 5, 12]),
    joined_steps=st.sampled_from([0, 0, 3, 25]),
)
def test_every_token_time_is_that_of_a_plain_simulation(
    requests: list[tuple[float, int, int]],
    groups: int,
    dealing: Dealing,
    sequences: int,
    step_tokens: int,
    kv_tokens: int,
    scheduling: Scheduling,
    admission: Admission,
    clients: int | None,
    joined_steps: int,
) -> None:
    times = replace(of_groups(bent_times(), groups, dealing=dealing), joined_steps=joined_steps)
    stream = stream_of(requests)
    limits = BatchLimits(sequences, step_tokens, kv_tokens, scheduling, admission)
    if clients is None:
        found = simulate(times, stream, limits, window=ALL)
    else:
        found = simulate_closed_loop(times, stream, limits, concurrency=clients, window=ALL)
    first_s, last_s = ReferenceGroups(times, stream, limits, clients=clients).run()
    np.testing.assert_allclose(found.requests.first_s, first_s, rtol=1e-9)
    np.testing.assert_allclose(found.requests.last_s, last_s, rtol=1e-9)


def test_a_request_alone_has_no_company() -> None:
    times, limits = of_groups(bent_times(), 4), BatchLimits(8, 40, 400)
    stream = stream_of([(1.0, 60, 20)])
    found, alone = (simulate(of, stream, limits, window=ALL) for of in (times, times.alone()))
    assert found.ttft_s[0] == pytest.approx(alone.ttft_s[0])
    assert found.tpot_s[0] == pytest.approx(alone.tpot_s[0])


def test_the_slowest_group_holds_up_the_others() -> None:
    """Requests in turn of a long and a short cache: all wait for the attention of the long ones."""
    times, limits = of_groups(bent_times(), 2), BatchLimits(8, 200, 4000)
    long, short = (0.0, 190, 100), (0.0, 5, 100)
    apart = simulate(times, stream_of([long, short] * 4), limits, window=ALL)
    mixed = simulate(times, stream_of([long, long, short, short] * 2), limits, window=ALL)
    brief = simulate(times, stream_of([short] * 8), limits, window=ALL)
    assert apart.tpot_s[1] > 1.05 * brief.tpot_s[1]
    assert np.mean(apart.tpot_s) > np.mean(mixed.tpot_s)
    assert list(apart.requests.group) == [0, 1] * 4


def test_short_queues_get_the_next_request() -> None:
    times, limits = of_groups(bent_times(), 3, dealing=SHORT_QUEUES), BatchLimits(1, 200, 4000)
    requests = [(0.0, 150, 60), (0.0, 5, 2), (0.0, 5, 30), (0.1, 5, 5), (0.1, 5, 5)]
    found = simulate(times, stream_of(requests), limits, window=ALL)
    # The second group is idle by then; after it the turn is the third's, whose line is as short as the first's.
    assert list(found.requests.group) == [0, 1, 2, 1, 2]


@pytest.mark.parametrize(("rate", "sequences"), [(100.0, 8), (30.0, 64)])
def test_a_run_cut_short_misses_what_the_whole_run_misses(rate: float, sequences: int) -> None:
    times, limits = of_groups(bent_times(), 4), BatchLimits(sequences, 512, 40_000)
    stream = poisson_stream(Load(rate, TokenCount(80.0, 0.5), TokenCount(60.0, 0.8)), requests=2000, seed=0)
    whole = simulate(times, stream, limits)
    figures = (whole.ttft(0.95).value, whole.tpot(0.95).value)
    for scale in (0.9, 1.1):
        for target in (Targets(ttft_s=figures[0] * scale), Targets(tpot_s=figures[1] * scale)):
            assert simulate(times, stream, limits, targets=target).missed == (scale < 1.0)


@pytest.mark.parametrize("sigma", [0.0, 0.7])
@pytest.mark.parametrize(("groups", "sequences", "step_tokens"), [(2, 4, 64), (8, 16, 256), (8, 64, 512)])
def test_no_schedule_is_faster_than_the_bound(groups: int, sequences: int, step_tokens: int, sigma: float) -> None:
    times, limits = of_groups(bent_times(), groups, exchange_s=1e-8), BatchLimits(sequences, step_tokens, 100_000)
    lengths = Load(1.0, TokenCount(60.0, sigma), TokenCount(40.0, sigma))
    stream = poisson_stream(lengths, requests=9000, seed=1)
    full = simulate_closed_loop(times, stream, limits, concurrency=2 * groups * sequences, window=ALL)
    bound_s = float(least_work_s(times, demand_of(stream), (step_tokens,))[0, sequences - 1])
    assert bound_s < full.worked_s / len(stream)
    assert bound_s > 0.5 * full.worked_s / len(stream)


def test_no_step_is_below_the_bounds_function() -> None:
    """For any tokens of the groups, the function of their mean is below the step's time."""
    own = bent_times()
    stairs = own.tokens_s[0] + 2e-4 * (np.arange(own.max_tokens + 1) // 16)
    times = of_groups(replace(own, tokens_s=stairs[None, :]), 4)
    least = times.least().tokens_s[0]
    random = np.random.Generator(np.random.PCG64(0))
    for high in (3, 30, 300):
        tokens = random.integers(0, high, (500, 4))
        tokens = tokens[tokens.any(axis=1)]
        joint_s = times.joint_s(tokens.sum(axis=1).astype(float), tokens.max(axis=1))
        takes_s = np.maximum(stairs[tokens.max(axis=1)], stairs[1]) + joint_s
        bound_s = np.interp(tokens.mean(axis=1), np.arange(len(least)), least)
        assert (bound_s <= takes_s * (1 + 1e-12)).all()


def test_the_convex_function_below_touches_from_below() -> None:
    at, values = np.array([0.0, 1.0, 2.0, 4.0, 5.0]), np.array([1.0, 3.0, 2.0, 9.0, 4.0])
    np.testing.assert_allclose(convex_below(at, values), [1.0, 1.5, 2.0, 10 / 3, 4.0])


def test_every_attention_group_sends_over_its_own_link() -> None:
    times, limits = of_groups(bent_times(), 2), BatchLimits(4, 200, 4000)
    stream, transfer = stream_of([(0.0, 50, 4)] * 4), CacheTransfer(latency_s=0.0, token_s=0.01)
    prefilled = simulate_prefill(Pool(times, limits, 1), transfer, stream, seed=0)
    assert len(np.unique(prefilled.done_s)) == 1
    np.testing.assert_allclose(np.sort(prefilled.arrived_s - prefilled.done_s), [0.5, 0.5, 1.0, 1.0])
