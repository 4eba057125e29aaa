"""The bound on what an engine can keep up with, and what a request alone sees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from meshwright.costmodels.queueing.analytic.capacity import demand_of, least_work_s, mean_least_work_s
from meshwright.costmodels.queueing.analytic.step_curves import first_token_s, token_s
from meshwright.costmodels.queueing.load import Load, RequestStream, TokenCount, poisson_stream
from meshwright.costmodels.queueing.simulation.replica import Admission, BatchLimits, Window, simulate, simulate_closed_loop
from meshwright.costmodels.queueing.step_times import StepTimes
from tests.unit.costmodels.queueing.tables import linear_times

ALL = Window(warm_up=0.0, cool_down=0.0)


def bent_times(*, stages: int = 1) -> StepTimes:
    """Weights are read once, then tokens cost: a step takes the longer of both."""
    times = linear_times(token_s=2e-5, kv_token_s=3e-9, pair_s=1e-9, logit_s=1e-5, stages=stages, max_tokens=2048)
    return StepTimes(**{**vars(times), "tokens_s": np.maximum(times.tokens_s, 4e-3 / stages * (times.tokens_s > 0.0))})


@settings(max_examples=25, deadline=None)
@given(
    prompt=st.integers(20, 900),
    output=st.integers(1, 60),
    sequences=st.sampled_from([1, 4, 16, 60]),
    step_tokens=st.sampled_from([128, 512, 2048]),
    stages=st.integers(1, 3),
)
def test_a_full_engine_is_never_faster_than_the_bound(
    prompt: int, output: int, sequences: int, step_tokens: int, stages: int
) -> None:
    times = bent_times(stages=stages)
    stream = poisson_stream(Load(1.0, TokenCount(prompt, 0.4), TokenCount(output, 0.4)), requests=400, seed=1)
    limits = BatchLimits(sequences, step_tokens, 400_000, admission=Admission.PREEMPT)
    full = simulate_closed_loop(times, stream, limits, concurrency=2 * sequences, window=ALL)
    least_s = least_work_s(times, demand_of(stream), (step_tokens,))[0, -(-sequences // stages) - 1]
    assert full.duration_s >= len(stream) * least_s
    of_a_mean_stage_s = mean_least_work_s(times, demand_of(stream), (step_tokens,))[0, -(-sequences // stages) - 1]
    assert of_a_mean_stage_s <= least_s
    assert full.worked_s >= len(stream) * of_a_mean_stage_s


def test_the_bound_is_nearly_the_linear_program() -> None:
    times = bent_times()
    stream = poisson_stream(Load(1.0, TokenCount(300.0), TokenCount(40.0)), requests=50, seed=0)
    demand = demand_of(stream)
    steps = [(n, m - n) for m in range(1, 513) for n in range(min(m, 16) + 1)]
    attention_s = [float(np.interp(demand.kv_tokens, times.kv_grid, times.decode_s[0, n])) for n in range(17)]
    cost = [times.tokens_s[0, n + p] + times.logits_s[0, n] + attention_s[n] for n, p in steps]
    wanted = [-demand.rounds, -demand.prompt_tokens]
    program = linprog(cost, A_ub=-np.array(steps).T, b_ub=wanted)
    pairs_s = demand.pairs * 1e-9
    found = least_work_s(times, demand, (512,))[0, 15] - pairs_s
    # Each request's prompt holds many tokens: steps may be shared by requests in the program, as in the bound.
    assert 0.97 * program.fun <= found <= program.fun * (1.0 + 1e-9)


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize(("prompt", "cached", "step_tokens"), [(700, 0, 256), (700, 130, 256), (512, 512, 512), (90, 0, 2048)])
def test_a_request_alone_takes_what_the_simulator_says(stages: int, prompt: int, cached: int, step_tokens: int) -> None:
    times = bent_times(stages=stages)
    stream = RequestStream(np.zeros(1), np.array([prompt]), np.array([30]), np.array([cached]))
    result = simulate(times, stream, BatchLimits(1, step_tokens, 2000), window=ALL)
    assert first_token_s(times, prompt_tokens=prompt, cached_tokens=cached, step_tokens=step_tokens) == pytest.approx(
        result.ttft_s[0]
    )
    assert token_s(times, prompt_tokens=prompt, output_tokens=30) == pytest.approx(result.tpot_s[0])
