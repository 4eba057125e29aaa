"""A worker that switches layouts, against arithmetic and against a second, plain simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.queueing.load import Load, TokenCount, poisson_stream
from meshwright.costmodels.queueing.simulation.replica import BatchLimits, Targets, Window
from meshwright.costmodels.queueing.simulation.switched import LayoutChange, PhaseEngine, simulate_switched
from tests.unit.costmodels.queueing.reference_switched import ReferenceSwitched
from tests.unit.costmodels.queueing.simulation import stream_of
from tests.unit.costmodels.queueing.tables import linear_times

ALL = Window(warm_up=0.0, cool_down=0.0)
PREFILL = PhaseEngine(linear_times(fixed_s=5e-3, token_s=1e-4), BatchLimits(16, 4096, 10**6))
DECODE = PhaseEngine(linear_times(fixed_s=2e-2, token_s=1e-3), BatchLimits(16, 512, 10**6))
CHANGE = LayoutChange(to_decode_s=0.5, to_prefill_s=0.25, out_token_s=1e-3, in_token_s=2e-3, buffer_tokens=10_000)


def test_one_request_counted_by_hand() -> None:
    result = simulate_switched(PREFILL, DECODE, CHANGE, stream_of((1.0, 100, 3)), window=ALL)
    first_s = 1.0 + 5e-3 + 100e-4
    in_host_s = first_s + 100e-3
    loaded_s = in_host_s + 0.5 + 100 * 2e-3
    assert result.whole.requests.first_s[0] == pytest.approx(first_s)
    assert result.whole.requests.last_s[0] == pytest.approx(loaded_s + 2 * 21e-3)
    assert (result.phases, result.switching_s) == (1, pytest.approx(0.5))
    assert result.decode_s == pytest.approx(0.2 + 42e-3)
    assert result.whole.mean_batch == pytest.approx(42e-3 / result.decode_s)


def test_prompts_are_computed_until_host_memory_is_full() -> None:
    """Five prompts of 100 tokens wait; the host holds two: three phases."""
    change = replace(CHANGE, buffer_tokens=250, out_token_s=0.0, in_token_s=0.0)
    result = simulate_switched(PREFILL, DECODE, change, stream_of(*[(0.0, 100, 2)] * 5), window=ALL)
    assert result.phases == 3
    assert len(set(result.whole.requests.first_s.tolist())) == 3
    # Of the third phase only the change that comes before it.
    assert result.switching_s == pytest.approx(2 * 0.75 + 0.5)


def test_answers_of_one_token_change_nothing() -> None:
    result = simulate_switched(PREFILL, DECODE, CHANGE, stream_of(*[(0.0, 100, 1)] * 5), window=ALL)
    assert (result.phases, result.decode_s, result.whole.mean_batch) == (0, 0.0, 0.0)


@pytest.mark.parametrize("stages", [(1, 1), (4, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("rate", [0.7, 2.0, 50.0])
def test_every_request_agrees_with_the_plain_simulator(stages: tuple[int, int], rate: float) -> None:
    load = Load(rate, TokenCount(700.0, 0.7), TokenCount(30.0, 0.8))
    stream = poisson_stream(load, requests=250, seed=4)
    stream.output_tokens[::17] = 1
    costs = {"fixed_s": 5e-3, "token_s": 5e-5, "kv_token_s": 1e-7, "pair_s": 3e-8, "logit_s": 2e-5}
    prefill = PhaseEngine(
        linear_times(**costs, least_prompt_s=0.02, stages=stages[0], max_sequences=512), BatchLimits(12, 1024, 9_000)
    )
    decode = PhaseEngine(linear_times(**costs, stages=stages[1]), BatchLimits(21, 64, 11_000))
    change = LayoutChange(0.3, 0.2, 2e-5, 1e-5, 14_000)
    expected = ReferenceSwitched(prefill, decode, change, stream)
    first_s, last_s = expected.run()
    result = simulate_switched(prefill, decode, change, stream, window=ALL)
    np.testing.assert_allclose(result.whole.requests.first_s, first_s, rtol=1e-9)
    np.testing.assert_allclose(result.whole.requests.last_s, last_s, rtol=1e-9)
    assert result.phases == expected.phases > 3


def test_all_time_is_accounted_for() -> None:
    stream = poisson_stream(Load(3.0, TokenCount(700.0), TokenCount(30.0)), requests=400, seed=1)
    result = simulate_switched(PREFILL, DECODE, CHANGE, stream, window=ALL)
    assert result.prefill_s + result.decode_s + result.switching_s == pytest.approx(result.whole.duration_s)
    assert 0.0 < result.whole.busy < 1.0
    assert result.whole.mean_batch <= DECODE.limits.sequences


def test_a_run_that_is_sure_to_miss_ends_early() -> None:
    stream = poisson_stream(Load(30.0, TokenCount(700.0), TokenCount(30.0)), requests=400, seed=1)
    whole = simulate_switched(PREFILL, DECODE, CHANGE, stream).whole
    early = simulate_switched(PREFILL, DECODE, CHANGE, stream, targets=Targets(ttft_s=2.0)).whole
    assert early.missed
    assert not whole.missed
    assert early.duration_s < whole.duration_s / 2


@pytest.mark.parametrize(
    ("change", "request_of"),
    [(replace(CHANGE, buffer_tokens=99), (0.0, 100, 2)), (CHANGE, (0.0, 100, 10**6)), (CHANGE, (0.0, 2 * 10**6, 1))],
)
def test_requests_that_never_fit_are_refused(change: LayoutChange, request_of: tuple[float, int, int]) -> None:
    with pytest.raises(WorkloadError, match="can't hold the longest request"):
        simulate_switched(PREFILL, DECODE, change, stream_of(request_of))
