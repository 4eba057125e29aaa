"""The law of measured over simulated latencies: what is promised, what a target asks of a simulation, and how it is fitted."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from meshwright.costmodels.fitting.calibration import LatencyPoint, fitted_outside_s, fitted_spreads, learned_latency
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.queueing.router import Router
from meshwright.costmodels.serving.engine_profile import ENGINE_PROFILES, ServingEngine
from meshwright.costmodels.serving.latency_law import (
    BOTH_PHASES,
    HOST_STEP_SIGMA_S,
    OPEN_LOOPS,
    OUTSIDE_SIGMA_S,
    POOLS,
    LatencyLaw,
    latency_law,
)

LAW = LatencyLaw(outside_s=0.04, scale=1.1, shared_sigma=0.25, own_sigma=0.4)


def points(times_s: list[tuple[float, float]]) -> list[LatencyPoint]:
    return [LatencyPoint(str(place), simulated_s, measured_s) for place, (simulated_s, measured_s) in enumerate(times_s)]


@pytest.mark.parametrize("confidence", [0.5, 0.75, 0.9, 0.99])
def test_a_target_of_simulated_times_is_what_promises_the_target(confidence: float) -> None:
    assert LAW.promised_s(LAW.simulated_s(0.7, confidence), confidence) == pytest.approx(0.7)


def test_measured_times_stay_below_what_is_promised_as_often_as_it_says() -> None:
    drawn = np.random.Generator(np.random.PCG64(0)).normal(0.0, LAW.log_sigma, 40_000)
    measured_s = LAW.scale * (0.2 + LAW.outside_s) * np.exp(drawn)
    for confidence in (0.5, 0.9, 0.95):
        assert np.mean(measured_s <= LAW.promised_s(0.2, confidence)) == pytest.approx(confidence, abs=0.006)
    assert np.mean(measured_s > 0.5) == pytest.approx(LAW.chance_above(0.2, 0.5), abs=0.006)


def test_nobody_waits_for_a_time_that_is_not_there() -> None:
    assert LAW.promised_s(0.0, 0.9) == 0.0
    assert LAW.chance_above(0.0, 0.1) == 0.0
    assert LAW.chance_above(0.2, math.inf) == 0.0


def test_a_target_that_the_constant_alone_takes_leaves_nothing() -> None:
    assert LAW.simulated_s(0.04, 0.9) < 0.0


def test_each_engine_has_a_constant_and_borrowed_kernels_widen_the_law() -> None:
    measured, borrowed = (
        node_type("dgx-h100").device,
        replace(node_type("dgx-h100").device, calibration="l40s~h100_sxm"),
    )
    for engine in ServingEngine:
        own = latency_law(engine, pools=False, devices=[measured])
        assert own == replace(BOTH_PHASES, ttft=replace(BOTH_PHASES.ttft, outside_s=ENGINE_PROFILES[engine].outside_s))
        wider = latency_law(engine, pools=False, devices=[measured, borrowed])
        assert wider.tpot.factor(0.9) > own.tpot.factor(0.9)
        assert wider.ttft.log_sigma == pytest.approx(
            math.hypot(own.ttft.log_sigma, math.log(1.413) / NormalDist().inv_cdf(0.95))
        )
        assert latency_law(engine, pools=True, devices=[measured]).ttft.log_sigma == POOLS.ttft.log_sigma


def test_the_fit_finds_what_points_were_made_with() -> None:
    draw = np.random.Generator(np.random.PCG64(1))
    shared, own = 0.2, 0.1
    deployments = []
    for shift in draw.normal(0.0, shared, 60):
        simulated_s = draw.uniform(0.02, 0.4, 50)
        measured_s = (simulated_s + 0.1) * np.exp(shift + draw.normal(0.0, own, 50))
        deployments.append(points(list(zip(simulated_s, measured_s, strict=True))))
    tried_s = [0.02 * step for step in range(11)]
    outside_s = fitted_outside_s(deployments, tried_s)
    assert outside_s == pytest.approx(0.1, abs=0.021)
    found = fitted_spreads([point.log_error(0.1) for point in each] for each in deployments)
    assert found == (pytest.approx(shared, rel=0.2), pytest.approx(own, rel=0.3))


def test_points_of_ones_own_move_the_median_and_narrow_the_law() -> None:
    prior = latency_law(ServingEngine.VLLM, pools=False, devices=[]).tpot
    assert learned_latency(prior, [], outside_sigma_s=HOST_STEP_SIGMA_S) is prior
    slower = [
        learned_latency(prior, points([(0.010, 0.013), (0.020, 0.026), (0.030, 0.039)][:n]), outside_sigma_s=1.2e-3)
        for n in (1, 3)
    ]
    medians_s = [prior.median_s(0.02), *(law.median_s(0.02) for law in slower)]
    assert medians_s == sorted(medians_s) and 0.024 < medians_s[-1] < 0.026
    sigmas = [prior.log_sigma, *(law.log_sigma for law in slower)]
    assert sigmas == sorted(sigmas, reverse=True) and len(set(sigmas)) == 3


def test_a_constant_is_told_from_a_factor_where_times_differ() -> None:
    """A host that adds 60 ms to short and long prompts alike."""
    prior = latency_law(ServingEngine.VLLM, pools=False, devices=[]).ttft
    adds_s = prior.outside_s + 0.06
    measured = points([(s, s + adds_s) for s in (0.01, 0.03, 0.1, 0.5, 1.0)])
    told = learned_latency(prior, measured, outside_sigma_s=OUTSIDE_SIGMA_S)
    assert abs(told.outside_s - adds_s) < 0.03
    assert told.scale == pytest.approx(1.0, abs=0.1)


def test_a_layout_measured_twice_counts_once() -> None:
    prior = latency_law(ServingEngine.VLLM, pools=False, devices=[]).tpot
    once = [LatencyPoint("a", 0.010, 0.012)]
    assert learned_latency(prior, once * 5, outside_sigma_s=1e-3) == learned_latency(prior, once, outside_sigma_s=1e-3)


def test_open_loops_are_slowed_by_what_is_promised_of_their_steps() -> None:
    drawn, turns = OPEN_LOOPS[Router.RANDOM], OPEN_LOOPS[Router.ROUND_ROBIN]
    assert set(OPEN_LOOPS) == set(Router)
    assert drawn.slowdown(0.5) == drawn.ttft_factor(0.5) == drawn.slowdown(0.1) == 1.0
    assert drawn.slowdown(0.9) == pytest.approx(1.253, abs=1e-3)
    assert drawn.slowdown(0.99) > drawn.slowdown(0.9)
    # Dealt out in turn first tokens are predicted earlier, and promised later.
    assert turns.ttft_factor(0.9) > drawn.ttft_factor(0.9)
    # Fitted to open loops alone, it is the law of times per token of closed ones.
    assert drawn.slowdown(0.9) == pytest.approx(BOTH_PHASES.tpot.factor(0.9), rel=0.01)
