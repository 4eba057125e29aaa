"""Rounds that verify drafted tokens: the simulator against the plain one, and the bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.queueing.analytic.capacity import demand_of, least_work_s
from meshwright.costmodels.queueing.load import Load, RequestStream, TokenCount, poisson_stream
from meshwright.costmodels.queueing.simulation.replica import Admission, BatchLimits, Window, simulate, simulate_closed_loop
from meshwright.costmodels.serving.speculation import Draft, DraftMethod, Speculation, drawn_rounds, speculative_times
from tests.unit.costmodels.queueing.reference_engine import ReferenceEngine
from tests.unit.costmodels.queueing.tables import linear_times

ALL = Window(warm_up=0.0, cool_down=0.0)
TIMES = linear_times(fixed_s=5e-3, token_s=1e-5, kv_token_s=1e-8, pair_s=1e-9, logit_s=2e-6, max_sequences=320)


def speculation(draft_tokens: int, acceptance: float, cost: float = 0.1) -> Speculation:
    return Speculation(draft_tokens, acceptance, Draft(DraftMethod.EAGLE, relative_cost=cost))


def drafted(stream: RequestStream, by: Speculation) -> RequestStream:
    return replace(stream, rounds=drawn_rounds(stream.output_tokens - 1, by, seed=7))


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    draft_tokens=st.integers(1, 4),
    acceptance=st.sampled_from([0.0, 0.4, 0.8, 1.0]),
    sequences=st.sampled_from([1, 3, 16]),
    step_tokens=st.sampled_from([96, 256, 2048]),
    kv_tokens=st.sampled_from([1500, 4000, 100_000]),
    rate=st.sampled_from([2.0, 20.0]),
    seed=st.integers(0, 100),
)
def test_every_request_sees_what_the_plain_simulator_says(
    draft_tokens: int, acceptance: float, sequences: int, step_tokens: int, kv_tokens: int, rate: float, seed: int
) -> None:
    by = speculation(draft_tokens, acceptance)
    times = speculative_times(TIMES, TIMES, by)
    load = Load(rate, TokenCount(200.0, 0.5), TokenCount(30.0, 0.5))
    stream = drafted(poisson_stream(load, requests=60, seed=seed), by)
    limits = BatchLimits(sequences, step_tokens, kv_tokens, admission=Admission.RESERVE)
    result = simulate(times, stream, limits, window=ALL)
    first_s, last_s = ReferenceEngine(times, stream, limits).run()
    assert result.requests.first_s == pytest.approx(first_s, rel=1e-9)
    assert result.requests.last_s == pytest.approx(last_s, rel=1e-9)
    assert np.array_equal(result.requests.output_tokens, stream.output_tokens)


def test_a_request_alone_takes_the_sum_of_its_rounds() -> None:
    by = speculation(3, 1.0)
    times = speculative_times(TIMES, TIMES, by)
    # 9 tokens after the first in three rounds of four; half of the six tokens beyond one a round are in the cache on average.
    stream = drafted(RequestStream(np.array([0.0]), np.array([100]), np.array([10])), by)
    result = simulate(times, stream, BatchLimits(1, 512, 10_000), window=ALL)
    rounds_s = 0.0
    for done in range(1, 4):
        held = 100 + 3 + done
        verified_s = 5e-3 + 4 * 1e-5 + 1e-8 * held + 4 * 2e-6
        rounds_s += verified_s + 3 * 0.1 * (5e-3 + 1e-5 + 1e-8 * held + 2e-6)
    assert result.tpot_s[0] == pytest.approx(rounds_s / 9, rel=1e-9)


def test_kept_proposals_are_what_makes_answers_faster() -> None:
    stream = poisson_stream(Load(0.5, TokenCount(100.0), TokenCount(200.0)), requests=300, seed=0)
    limits = BatchLimits(16, 2048, 100_000)
    plain_s = float(np.mean(simulate(TIMES, stream, limits).tpot_s))
    for acceptance, tokens_per_step in ((0.3, 1.4251), (0.8, 3.3616)):  # Leviathan et al. 2023, equation 1
        by = speculation(4, acceptance, cost=0.0)
        seen_s = float(np.mean(simulate(speculative_times(TIMES, TIMES, by), drafted(stream, by), limits).tpot_s))
        # Nearly alone, a round of five tokens takes about as long as one of one.
        assert plain_s / seen_s == pytest.approx(tokens_per_step, rel=0.05)


@settings(max_examples=20, deadline=None)
@given(
    draft_tokens=st.integers(1, 4),
    acceptance=st.sampled_from([0.0, 0.6, 1.0]),
    prompt=st.integers(20, 900),
    output=st.integers(2, 60),
    sequences=st.sampled_from([1, 4, 16, 60]),
    step_tokens=st.sampled_from([320, 2048]),
)
def test_a_full_engine_is_never_faster_than_the_bound(
    draft_tokens: int, acceptance: float, prompt: int, output: int, sequences: int, step_tokens: int
) -> None:
    by = speculation(draft_tokens, acceptance)
    times = speculative_times(TIMES, TIMES, by)
    stream = poisson_stream(Load(1.0, TokenCount(prompt, 0.4), TokenCount(output, 0.4)), requests=300, seed=1)
    stream = drafted(stream, by)
    full = simulate_closed_loop(
        times, stream, BatchLimits(sequences, step_tokens, 400_000), concurrency=2 * sequences, window=ALL
    )
    least_s = least_work_s(times, demand_of(stream), (step_tokens,))[0, sequences - 1]
    assert least_s > 0.0 and full.duration_s >= len(stream) * least_s


def test_room_is_reserved_and_steps_hold_what_is_verified() -> None:
    by = speculation(4, 0.5)
    times = speculative_times(TIMES, TIMES, by)
    stream = drafted(RequestStream(np.array([0.0]), np.array([100]), np.array([10])), by)
    with pytest.raises(WorkloadError, match="reserved room"):
        simulate(times, stream, BatchLimits(4, 512, 10_000, admission=Admission.PREEMPT))
    with pytest.raises(WorkloadError, match="sequences at once"):
        simulate(times, stream, BatchLimits(64, 256, 10_000))
