"""Attention groups of a planned engine: their tables, what a request alone sees, and what bounds and simulations say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.costmodels.queueing.load import RequestStream
from meshwright.costmodels.queueing.simulation.replica import BatchLimits, simulate
from meshwright.costmodels.queueing.step_times import GroupTimes
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.choices import ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import ClosedArrivals, PoissonArrivals, TraceArrivals
from meshwright.solver.serving import simulate_serving
from meshwright.solver.serving.engines.engine import Engine, EngineBuilder
from meshwright.solver.serving.engines.layouts import layouts
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.candidates import Candidate
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.promised import promised_of
from tests.support.serving_layouts import pools_of, replicas_of
from tests.unit.solver.serving.expert_plans import expert_request, planned

pytestmark = pytest.mark.usefixtures("short_simulations")


def engine_of(search: Search) -> Engine:
    builder = EngineBuilder(expert_request(search), sequence_tokens=4096, step_tokens=4096, sequences=64)
    return next(builder.engine(layout) for layout in layouts(expert_request(search)))


def tables(search: Search) -> tuple[Engine, GroupTimes]:
    engine = engine_of(search)
    times = engine.simulated_times
    assert isinstance(times, GroupTimes)
    return engine, times


def under(load: PoissonArrivals | ClosedArrivals | TraceArrivals, search: Search) -> ServingRequest:
    request = expert_request(search)
    lengths = {"prompt_tokens": None, "output_tokens": None} if isinstance(load, TraceArrivals) else {}
    return replace(request, workload=replace(request.workload, arrivals=load, **lengths))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "search",
    [
        Search(attention_dp=(8,), ep=(8,)),
        Search(attention_dp=(8,), ep=(1,)),
        Search(tp=(2,), attention_dp=(4,), ep=(8,), engine=ServingEngine.SGLANG),
    ],
)
def test_groups_that_do_the_same_take_the_time_of_groups_alike(search: Search) -> None:
    engine, times = tables(search)
    tokens = np.arange(1, 4097)
    apart_s = times.own.tokens_s[0, tokens] + times.joint_s((tokens * times.groups).astype(np.float64), tokens)
    alike_s = engine.times.tokens_s[0, tokens]
    # Tables of groups alike do not fall where those of experts do, and are a line over the end of shared experts' own stream.
    assert float(np.median(np.abs(apart_s / alike_s - 1.0))) < 5e-3
    np.testing.assert_allclose(apart_s, alike_s, rtol=6e-2)


def test_a_fuller_group_is_never_faster_nor_is_company() -> None:
    _, times = tables(Search(attention_dp=(8,), ep=(8,)))
    tokens = np.arange(1, 4097)
    assert (np.diff(times.joint_s(np.full(4096, 4096.0), tokens)) >= 0.0).all()
    alone_s = times.alone().tokens_s[0, tokens]
    for company in (0, 7, 500):
        assert (
            times.own.tokens_s[0, tokens] + times.joint_s((tokens + company).astype(np.float64), tokens)
            >= alone_s * (1 - 1e-12)
        ).all()


@pytest.mark.parametrize("engine", ServingEngine)
def test_engines_deal_requests_in_their_own_way(engine: ServingEngine) -> None:
    _, times = tables(Search(tp=(1,), attention_dp=(8,), ep=(8,), engine=engine))
    weights = {ServingEngine.VLLM: (4, 1), ServingEngine.SGLANG: (0, 0), ServingEngine.TENSORRT_LLM: (1, 1)}
    assert (times.dealing.waiting, times.dealing.running) == weights[engine]


@pytest.mark.slow
def test_a_lone_request_takes_what_refuses_engines() -> None:
    """At a load of hardly any requests the simulation shows the bound, which company would be above."""
    request = under(PoissonArrivals("poisson", 0.01), Search(attention_dp=(4,), ep=(4,)))
    evaluator = Evaluator(request.workload, promised_of(request), seed=0)  # type: ignore[arg-type]
    builder = EngineBuilder(request, sequence_tokens=4096)
    candidate = Candidate(next(builder.engine(layout) for layout in layouts(request)), 1024, 16)
    alone = evaluator.alone(candidate.engine, 1024)
    (found,) = evaluator.simulations_of(candidate, Share(0.01), requests=100)
    assert float(np.median(found.ttft_s)) == pytest.approx(alone.ttft_s)
    assert float(np.median(found.tpot_s)) == pytest.approx(alone.tpot_s)
    assert alone.tpot_s < 0.99 * float(candidate.engine.times.decode_step_s(np.ones(1), 2050.0)[0, 0])


@pytest.mark.slow
def test_a_full_engine_stays_below_its_bound() -> None:
    request = under(PoissonArrivals("poisson", 1.0), Search(attention_dp=(4,), ep=(4,)))
    evaluator = Evaluator(request.workload, promised_of(request), seed=0)  # type: ignore[arg-type]
    builder = EngineBuilder(request, sequence_tokens=4096)
    candidate = Candidate(next(builder.engine(layout) for layout in layouts(request)), 4096, 64)
    assert 0.6 * evaluator.rate_bound(candidate) < evaluator.capacity(candidate) < evaluator.rate_bound(candidate)
    assert evaluator.least_request_s(candidate) == pytest.approx(4 / evaluator.rate_bound(candidate))


@pytest.mark.parametrize("load", [PoissonArrivals("poisson", 6.0), ClosedArrivals("closed", 12)])
def test_a_plan_sees_what_it_was_promised(load: PoissonArrivals | ClosedArrivals) -> None:
    request = under(load, Search(attention_dp=(4,), ep=(4,)))
    plan = planned(request)
    found = simulate_serving(request, plan)
    assert plan.predicted is not None
    assert found.ttft.p95.value == plan.predicted.ttft_p95_s
    assert found.tpot is not None
    assert found.tpot.p95.value == plan.predicted.tpot_p95_s
    if isinstance(load, PoissonArrivals):
        assert found.requests_per_s == pytest.approx(6.0, rel=0.1)
    else:
        # Clients of a replica are spread over its groups.
        assert found.peak_running == -(-12 // replicas_of(plan).load.replicas // 4)


def test_the_whole_trace_goes_to_a_replica() -> None:
    times = tuple(0.05 * k for k in range(90))
    trace = TraceArrivals("trace", times, tuple(500 + k for k in range(90)), (20,) * 90)
    request = under(trace, Search(attention_dp=(4,), ep=(4,)))
    evaluator = Evaluator(request.workload, promised_of(request), seed=0)  # type: ignore[arg-type]
    builder = EngineBuilder(request, sequence_tokens=4096)
    candidate = Candidate(next(builder.engine(layout) for layout in layouts(request)), 1024, 16)
    found = evaluator.simulations_of(candidate, Share(trace.requests_per_s, 2), requests=1000)
    assert [len(run.requests.arrival_s) for run in found] == [45, 45]
    assert all(len(np.unique(run.requests.group)) == 4 for run in found)


def test_pools_of_workers_with_groups_keep_their_promise() -> None:
    search = Search(attention_dp=(4,), ep=(4,), modes=(ServingMode.DISAGGREGATED,))
    request = expert_request(search)
    plan = planned(request)
    assert pools_of(plan) and plan.predicted is not None
    found = simulate_serving(request, plan)
    assert found.ttft.p95.value == plan.predicted.ttft_p95_s
    assert found.requests_per_s == pytest.approx(6.0, rel=0.1)


def test_unequal_lengths_hold_up_groups() -> None:
    """With the same requests, groups in lockstep are slower than one of them among others alike."""
    engine, times = tables(Search(attention_dp=(8,), ep=(8,)))
    random = np.random.Generator(np.random.PCG64(0))
    count, limits = 4000, BatchLimits(64, 2048, 400_000)
    prompts = random.integers(100, 4000, count)
    stream = RequestStream(np.cumsum(random.exponential(1 / 60.0, count)), prompts, np.full(count, 100))
    together = simulate(times, stream, limits)
    alike = simulate(engine.times, replace(stream, arrival_s=stream.arrival_s * 8), limits)
    assert together.tpot(0.95).value > 1.1 * alike.tpot(0.95).value
