from __future__ import annotations

import math

import pytest

from meshwright.costmodels.queueing.analytic.percentiles import predict
from meshwright.costmodels.queueing.load import Load, TokenCount, poisson_stream
from meshwright.costmodels.queueing.simulation.replica import BatchLimits, Scheduling, simulate
from tests.unit.costmodels.queueing.tables import linear_times

# About a 70B model on 4 devices: 8 ms to read the weights, 90 ms for 4000 prompt tokens.
TIMES = {
    stages: linear_times(fixed_s=8e-3, token_s=2e-5, kv_token_s=3e-9, stages=stages, max_sequences=256, max_tokens=16384)
    for stages in (1, 2)
}
FIXED = (TokenCount(4000.0), TokenCount(500.0))
SPREAD = (TokenCount(1000.0, 0.8), TokenCount(250.0, 0.8))


@pytest.mark.parametrize("lengths", [FIXED, SPREAD])
@pytest.mark.parametrize("scheduling", list(Scheduling))
@pytest.mark.parametrize("utilisation", [0.3, 0.5, 0.7])
def test_close_to_the_simulator(lengths: tuple[TokenCount, TokenCount], scheduling: Scheduling, utilisation: float) -> None:
    limits = BatchLimits(256, 16384, 10**7, scheduling)
    rate = utilisation * predict(TIMES[1], Load(1e-3, *lengths), limits).max_requests_per_s
    load = Load(rate, *lengths)
    figures = predict(TIMES[1], load, limits)
    simulated = simulate(TIMES[1], poisson_stream(load, requests=6000, seed=0), limits)
    assert figures.mean_batch == pytest.approx(simulated.mean_batch, rel=0.08)
    assert figures.tpot_p95_s == pytest.approx(simulated.tpot(0.95).value, rel=0.10)
    assert figures.ttft_p95_s == pytest.approx(simulated.ttft(0.95).value, rel=0.10)


@pytest.mark.parametrize("utilisation", [0.3, 0.6])
def test_pipelines_are_roughly_right(utilisation: float) -> None:
    limits = BatchLimits(256, 2048, 10**7)
    rate = utilisation * predict(TIMES[2], Load(1e-3, *FIXED), limits).max_requests_per_s
    load = Load(rate, *FIXED)
    figures = predict(TIMES[2], load, limits)
    simulated = simulate(TIMES[2], poisson_stream(load, requests=4000, seed=0), limits)
    assert figures.tpot_p95_s == pytest.approx(simulated.tpot(0.95).value, rel=0.15)
    assert figures.ttft_p95_s == pytest.approx(simulated.ttft(0.95).value, rel=0.15)


def test_overload_has_no_percentiles() -> None:
    limits = BatchLimits(32, 2048, 10**6)
    most = predict(TIMES[1], Load(1e-3, *FIXED), limits).max_requests_per_s
    figures = predict(TIMES[1], Load(most * 1.01, *FIXED), limits)
    assert figures.utilisation == pytest.approx(1.01)
    assert math.isinf(figures.ttft_p95_s)
    assert math.isinf(figures.tpot_p95_s)


def test_an_empty_engine_shows_a_request_alone() -> None:
    figures = predict(TIMES[1], Load(1e-6, *FIXED), BatchLimits(32, 8192, 10**6))
    assert figures.ttft_p95_s == pytest.approx(8e-3 + 4000 * 2e-5, rel=0.01)
    assert figures.tpot_p95_s == pytest.approx(8e-3 + 2e-5 + 4250 * 3e-9, rel=0.01)


def test_fewer_places_never_raise_the_largest_rate() -> None:
    rates = [predict(TIMES[1], Load(1e-3, *FIXED), BatchLimits(n, 8192, 10**7)).max_requests_per_s for n in (4, 16, 64, 256)]
    assert rates == sorted(rates)
