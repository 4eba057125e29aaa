"""Ways in which requests arrive, planned and split over replicas."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.queueing.router import Router
from meshwright.costmodels.queueing.simulation.dealing import MOST_TOGETHER
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.api import simulate
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Objective, ServingMode
from meshwright.solver.problem.request import Arrivals, ServingRequest, ServingWorkload, Slo
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import (
    ClosedArrivals,
    FixedLength,
    GammaArrivals,
    PoissonArrivals,
    PrefixCache,
    TraceArrivals,
)
from meshwright.solver.serving import plan_serving, predict_serving, simulate_serving
from meshwright.solver.serving.engines.engine import EngineBuilder
from meshwright.solver.serving.engines.layouts import layouts
from meshwright.solver.serving.engines.traffic import Share, Traffic
from meshwright.solver.serving.promise.candidates import Candidate
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.promised import promised_of
from meshwright.solver.serving.workers.given import given_candidate
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat
from tests.support.serving_layouts import replicas_of
from tests.unit.solver.serving.enumeration import best_objective
from tests.unit.solver.serving.requests import cluster, serving_request

pytestmark = pytest.mark.usefixtures("short_simulations", "few_batch_limits")


def workload(arrivals: Arrivals, **changes: object) -> ServingWorkload:
    base = serving_request().workload
    assert isinstance(base, ServingWorkload)
    lengths = {"prompt_tokens": None, "output_tokens": None} if isinstance(arrivals, TraceArrivals) else {}
    return replace(base, **({"arrivals": arrivals} | lengths | changes))


def request(arrivals: Arrivals, *, hits: float = 0.0, **changes: object) -> ServingRequest:
    return replace(serving_request(**changes), workload=workload(arrivals, prefix_hit_ratio=hits))  # type: ignore[arg-type]


def plan(of: ServingRequest) -> Plan:
    answer = plan_serving(of, stop=never_stop, progress=ignore_progress)
    assert check(answer, of) == ()
    return answer


def poisson_trace(rate: float, *, requests: int = 1500) -> TraceArrivals:
    gaps = np.random.Generator(np.random.PCG64(5)).exponential(1.0 / rate, requests)
    return TraceArrivals("trace", tuple(np.cumsum(gaps).tolist()), (2000,) * requests, (100,) * requests)


HARD = {"ttft_ms": 400.0, "tpot_ms": 20.0}


def test_bursts_never_take_fewer_devices() -> None:
    even, poisson, bursts = (
        plan(request(arrivals, **HARD)).devices
        for arrivals in (GammaArrivals("gamma", 9.0, 0.3), PoissonArrivals("poisson", 9.0), GammaArrivals("gamma", 9.0, 3.0))
    )
    assert 0 < even <= poisson < bursts


def test_a_poisson_trace_waits_as_poisson_arrivals_do() -> None:
    answers = [plan(request(arrivals, **HARD)) for arrivals in (PoissonArrivals("poisson", 4.0), poisson_trace(4.0))]
    assert answers[0].devices == answers[1].devices == 1
    drawn, recorded = (answer.predicted for answer in answers)
    assert drawn is not None
    assert recorded is not None
    assert recorded.ttft_p95_s == pytest.approx(drawn.ttft_p95_s, rel=0.15)
    assert recorded.tpot_p95_s == pytest.approx(drawn.tpot_p95_s, rel=0.05)


def test_a_trace_is_dealt_out_to_all_replicas() -> None:
    traffic = Traffic(workload(poisson_trace(9.0, requests=10)), 0, 1500)
    parts = traffic.streams(Share(traffic.load, 3))
    assert [len(part) for part in parts] == [4, 3, 3]
    whole = traffic.streams(Share(traffic.load, 1))[0]
    assert sorted(np.concatenate([part.arrival_s for part in parts])) == pytest.approx(list(whole.arrival_s))
    twice = traffic.streams(Share(2.0 * traffic.load, 1))[0]
    np.testing.assert_allclose(twice.arrival_s, whole.arrival_s / 2.0)


def test_in_turn_replicas_get_the_same_requests_at_more_even_times() -> None:
    arrivals = PoissonArrivals("poisson", 12.0)
    drawn, turns = (Traffic(workload(arrivals, router=router), 0, 8_000) for router in (Router.RANDOM, Router.ROUND_ROBIN))
    alone, four, eight = (Share(12.0 * replicas, replicas) for replicas in (1, 4, 8))
    np.testing.assert_array_equal(turns.streams(alone)[0].arrival_s, drawn.streams(alone)[0].arrival_s)
    for share in (four, eight):
        (stream,), (at_random,) = turns.streams(share), drawn.streams(share)
        np.testing.assert_array_equal(stream.output_tokens, at_random.output_tokens)
        gaps = np.diff(stream.arrival_s)
        assert np.mean(gaps) == pytest.approx(1.0 / 12.0, rel=0.03)
        assert np.std(gaps) / np.mean(gaps) == pytest.approx(share.replicas**-0.5, rel=0.05)
        assert turns.load_of(share).cv == pytest.approx(share.replicas**-0.5)
        assert drawn.load_of(share).cv == 1.0
    # What is simulated for one number of replicas does not stand for another.
    assert turns.key(four) != turns.key(eight) and drawn.key(four) == drawn.key(eight)


def test_replicas_that_a_router_looks_at_get_the_requests_of_all() -> None:
    traffic = Traffic(workload(PoissonArrivals("poisson", 12.0), router=Router.LEAST_LOADED), 0, 8_000)
    alone, three, many = (Share(12.0 * replicas, replicas) for replicas in (1, 3, 200))
    assert [traffic.side_by_side(share) for share in (alone, three, many)] == [1, 3, MOST_TOGETHER]
    for share in (alone, three, many):
        (stream,) = traffic.streams(share)
        together = traffic.side_by_side(share)
        assert len(stream) == 8_000 * together
        assert 1.0 / np.mean(np.diff(stream.arrival_s)) == pytest.approx(12.0 * together, rel=0.03)
    trace = Traffic(workload(poisson_trace(9.0, requests=40), router=Router.LEAST_LOADED), 0, 1500)
    (stream,) = trace.streams(Share(trace.load, 12))
    assert len(stream) == 40 and trace.side_by_side(Share(trace.load, 12)) == 12


def test_a_trace_is_dealt_to_the_replica_with_the_fewest() -> None:
    """Of a burst each replica gets its part; who answers the short request gets the next one."""
    trace = TraceArrivals("trace", (0.0, 0.0, 0.0, 1.0), (100, 100, 100, 100), (400, 2, 400, 2))
    workers = plan(request(PoissonArrivals("poisson", 4.0), **HARD)).layout.workers
    asked = replace(request(trace), workload=workload(trace, router=Router.LEAST_LOADED))
    evaluator, candidate, _ = given_candidate(asked, workers)
    found = evaluator.simulations_of(candidate, Share(trace.requests_per_s, 3), requests=100)
    assert [list(run.requests.output_tokens) for run in found] == [[400], [2, 2], [400]]
    # All of a longer one is run, where replicas of other arrivals have fewer requests each.
    long = poisson_trace(4.0, requests=400)
    asked = replace(asked, workload=workload(long, router=Router.LEAST_LOADED))
    evaluator, candidate, _ = given_candidate(asked, workers)
    found = evaluator.simulations_of(candidate, Share(long.requests_per_s, 3), requests=400)
    assert sum(len(run.requests.arrival_s) for run in found) == 400


def test_requests_in_turn_wait_less_and_take_fewer_devices() -> None:
    arrivals, whole = PoissonArrivals("poisson", 30.0), Search(tp=(1,), pp=(1,))
    asked = [replace(request(arrivals, search=whole, **HARD), workload=workload(arrivals, router=router)) for router in Router]
    plans = [plan(each) for each in asked]
    assert [found.devices for found in plans] == [4, 3, 3]
    # No bound leaves out what enumeration finds.
    assert [found.devices for found in plans] == [best_objective(each, found=None) for each in asked]
    waits = [simulate_serving(each, plans[0]).ttft.p95.value for each in asked]
    assert max(waits[1:]) < 0.9 * waits[0]


def test_first_tokens_of_requests_dealt_in_turn_are_promised_by_their_own_law() -> None:
    arrivals = PoissonArrivals("poisson", 4.0)
    asked = [
        replace(serving_request(confidence=0.9), workload=workload(arrivals, router=router))
        for router in (Router.RANDOM, Router.ROUND_ROBIN)
    ]
    drawn, turns = (promised_of(each).slowed for each in asked)
    assert drawn is not None and turns is not None
    assert turns.ttft_factor > drawn.ttft_factor and turns.slowdown <= drawn.slowdown


def test_a_router_is_refused_where_it_deals_nothing_out() -> None:
    with pytest.raises(WorkloadError, match="closed loop"):
        workload(ClosedArrivals("closed", 4), router=Router.ROUND_ROBIN)
    turns = workload(PoissonArrivals("poisson", 4.0), router=Router.ROUND_ROBIN)
    pools, switched = Search(modes=(ServingMode.DISAGGREGATED,)), Search(modes=(ServingMode.SWITCHED,))
    for search in (pools, switched, Search(worker_kinds=2)):
        with pytest.raises(WorkloadError, match="no other form"):
            plan(replace(serving_request(search=search), workload=turns))


def test_a_prefix_cache_saves_devices() -> None:
    cold, warm = (plan(request(PoissonArrivals("poisson", 20.0), hits=hits, **HARD)).devices for hits in (0.0, 0.9))
    assert 0 < warm < cold


def test_more_clients_take_more_devices() -> None:
    few, many = (plan(request(ClosedArrivals("closed", clients), **HARD)) for clients in (4, 48))
    assert 0 < few.devices < many.devices
    assert few.predicted is not None
    assert many.predicted is not None
    assert many.predicted.tokens_per_s > few.predicted.tokens_per_s
    # Little's law: each of four clients always has one request of 100 tokens on its way.
    ttft, tpot = few.predicted.ttft_p95_s, few.predicted.tpot_p95_s
    assert ttft is not None
    assert tpot is not None
    assert few.predicted.tokens_per_s >= 4 * 100 / (ttft + 99 * tpot)


def test_a_plan_for_clients_predicts_itself() -> None:
    of = request(ClosedArrivals("closed", 16), **HARD)
    answer = plan(of)
    assert predict_serving(of, answer).predicted == answer.predicted


def test_a_run_counts_from_its_opening_burst_to_its_end() -> None:
    settled = request(ClosedArrivals("closed", 24), **HARD)
    burst = request(ClosedArrivals("closed", 24, requests_per_client=6), **HARD)
    answer = plan(burst)
    found, long = simulate(burst, answer), simulate(settled, answer)
    assert (found.requests, found.counted) == (6 * math.ceil(24 / replicas_of(answer).load.replicas),) * 2
    assert found.missed == () and predict_serving(burst, answer).predicted == answer.predicted
    assert answer.predicted is not None and found.ttft.p95.value == answer.predicted.ttft_p95_s
    # A sixth of the requests come at once, and wait for one another; of clients that have long been at it none do.
    assert found.ttft.p95.value > 1.2 * long.ttft.p95.value
    assert {(p.low, p.high) for p in found.ttft.percentiles} == {(p.value, p.value) for p in found.ttft.percentiles}


def test_a_burst_that_no_layout_takes_in_time_has_a_reason() -> None:
    answer = plan(request(ClosedArrivals("closed", 400, requests_per_client=2), **(HARD | {"ttft_ms": 60.0})))
    assert answer.reason is not None


def test_the_burst_is_one_in_so_many_requests() -> None:
    answer = plan(request(ClosedArrivals("closed", 16, requests_per_client=4), **HARD))
    few, many = (
        simulate(request(ClosedArrivals("closed", 16, requests_per_client=n), **HARD), answer).ttft.p95.value for n in (4, 60)
    )
    assert many < few


def test_too_many_clients_are_named() -> None:
    answer = plan(request(ClosedArrivals("closed", 2000), **HARD))
    assert answer.reason is not None
    assert answer.reason.constraint == "concurrency"
    assert answer.reason.need == 2000.0


def cached(hit_ratio: float, hit: int, *, system: int = 0) -> PrefixCache:
    return PrefixCache(system, hit_ratio, FixedLength(hit))


def test_hits_are_of_single_requests() -> None:
    traffic = Traffic(workload(PoissonArrivals("poisson", 4.0), prefix_cache=cached(0.25, 1500, system=400)), 0, 20_000)
    (stream,) = traffic.streams(Share(4.0))
    assert stream.cached_tokens is not None
    assert set(stream.cached_tokens.tolist()) == {400, 1500}
    assert np.mean(stream.cached_tokens == 1500) == pytest.approx(0.25, abs=0.01)
    assert stream.shared_tokens == stream[5:9].shared_tokens == 400
    # A hit is never the whole prompt: its last token is computed.
    full = Traffic(workload(PoissonArrivals("poisson", 4.0), prefix_cache=cached(1.0, 9000)), 0, 100).whole
    assert set((full.prompt_tokens - full.shared - full.cached_tokens).tolist()) == {1}


def test_a_trace_records_its_hits() -> None:
    trace = replace(poisson_trace(4.0, requests=3), cached_tokens=(0, 2000, 700))
    system = PrefixCache(system_tokens=500)
    (stream,) = Traffic(workload(trace, prefix_cache=system), 0, 3).streams(Share(4.0))
    assert stream.cached_tokens is not None
    assert stream.cached_tokens.tolist() == [500, 1999, 700]
    with pytest.raises(WorkloadError, match="told twice"):
        workload(trace, prefix_hit_ratio=0.5)
    with pytest.raises(WorkloadError, match="told twice"):
        workload(trace, prefix_cache=cached(0.5, 100))
    with pytest.raises(WorkloadError, match="more cached tokens"):
        replace(trace, cached_tokens=(0, 2001, 0))


def test_few_long_hits_leave_the_slowest_as_slow() -> None:
    """As many tokens are cached on average: a share of every prompt hurries the 95th percentile, hits of half do not."""
    arrivals = PoissonArrivals("poisson", 4.0)
    even = plan(request(arrivals, hits=0.45, **HARD)).predicted
    uneven = plan(replace(serving_request(**HARD), workload=workload(arrivals, prefix_cache=cached(0.5, 1800)))).predicted
    assert even is not None and even.ttft_p95_s is not None
    assert uneven is not None and uneven.ttft_p95_s is not None
    assert uneven.ttft_p95_s > 1.1 * even.ttft_p95_s


@pytest.mark.parametrize("objective", [Objective.DEVICES, Objective.THROUGHPUT])
def test_with_hits_by_request_the_search_finds_what_enumeration_finds(objective: Objective) -> None:
    """Bounds hold with hits by request and a shared system prompt: nothing that keeps the promise is refused by them."""
    hits = workload(PoissonArrivals("poisson", 9.0), prefix_cache=cached(0.6, 1500, system=800))
    of = replace(serving_request(**HARD, objective=objective, search=Search(tp=(1, 2))), workload=hits)
    answer = plan(of)
    assert answer.certificate.status is Status.OPTIMAL
    assert best_objective(of, found=answer.certificate.objective) == pytest.approx(answer.certificate.objective)


@pytest.mark.parametrize("cache", [cached(1.0, 1900), cached(0.9, 1500), PrefixCache(system_tokens=1900)])
def test_bounds_hold_with_hits_by_request(cache: PrefixCache) -> None:
    """A request alone is no slower than the bound of one, and a full engine with little room answers no more than its bound."""
    tight = replace(cluster(per_node=1), memory_reserve=0.77)
    of = replace(serving_request(on=tight), workload=workload(PoissonArrivals("poisson", 1e-3), prefix_cache=cache))
    evaluator = Evaluator(of.workload, promised_of(replace(of, slo=Slo())), of.search.seed)
    (layout,) = layouts(of)
    engine = EngineBuilder(of, sequence_tokens=evaluator.longest_request).engine(layout)
    candidate = Candidate(engine, 2048, 64)
    assert candidate.limits.kv_tokens < 30_000
    alone = evaluator.alone(engine, 2048).ttft_s
    assert alone <= evaluator.measure_fully(candidate, Share(1e-3)).ttft.value
    assert evaluator.capacity(candidate) <= evaluator.rate_bound(candidate)


def test_pools_share_the_system_prompt_where_prompts_are_computed() -> None:
    hits = workload(PoissonArrivals("poisson", 6.0), prefix_cache=cached(0.6, 1500, system=800))
    of = serving_request(ttft_ms=700.0, tpot_ms=12.0, search=Search(modes=(ServingMode.DISAGGREGATED,)))
    cold, warm = plan(of), plan(replace(of, workload=hits))
    assert cold.feasible and warm.feasible
    assert flat(cold).prefill is not None and flat(warm).prefill is not None
    assert flat(warm).prefill.utilisation < flat(cold).prefill.utilisation * 6.0 / 4.0


def loop(clients: int, **given: object) -> ServingRequest:
    asked = serving_request(search=Search(tp=(1, 2), pp=(1, 2)), objective=Objective.THROUGHPUT, **given)  # type: ignore[arg-type]
    return replace(asked, workload=workload(ClosedArrivals("closed", clients)))


def answers_per_s(request: ServingRequest) -> dict[tuple[str, int, int, int], float]:
    """Requests a second of every layout, number of replicas and batch limit that keeps the promise, by simulation alone."""
    evaluator = Evaluator(request.workload, promised_of(request), request.search.seed)
    builder, found = EngineBuilder(request, sequence_tokens=evaluator.longest_request), {}
    for layout in layouts(request):
        for candidate in evaluator.candidates(builder.engine(layout)):
            for replicas in range(1, min(layout.most_replicas, int(evaluator.traffic.load)) + 1):
                measured = evaluator.measure(candidate, Share(evaluator.traffic.load, replicas))
                if measured.keeps:
                    limits = (candidate.step_tokens, candidate.sequences)
                    found[layout.name, replicas, *limits] = replicas * measured.requests_per_s
    return found


@pytest.mark.parametrize(("clients", "tpot_ms"), [(24, None), (24, 9.0), (5, None)])
def test_clients_of_a_closed_loop_are_answered_by_the_fastest_replicas(clients: int, tpot_ms: float | None) -> None:
    request = loop(clients, ttft_ms=None, tpot_ms=tpot_ms)
    answer = plan(request)
    assert answer.certificate.status is Status.OPTIMAL
    best = max(answers_per_s(request).values())
    assert answer.certificate.objective == pytest.approx(1.0 / best)
    assert answer.predicted is not None
    assert answer.predicted.tokens_per_s == pytest.approx(100.0 * best)
    assert predict_serving(request, answer).predicted == answer.predicted


def test_replicas_with_fewer_clients_do_not_count_as_the_fullest() -> None:
    """Of five clients on two replicas three are on the fuller one."""
    of_five, of_three = (answers_per_s(loop(clients, ttft_ms=None, tpot_ms=None)) for clients in (5, 3))
    fullest = {tuple(limits): rate for (name, replicas, *limits), rate in of_three.items() if (name, replicas) == ("tp 1", 1)}
    assert fullest
    for limits, rate in fullest.items():
        assert of_five["tp 1", 2, *limits] == pytest.approx(5.0 / 3.0 * rate)


def test_without_targets_fewest_devices_answer_as_fast_as_they_can() -> None:
    request = replace(loop(24, ttft_ms=None, tpot_ms=None), objective=Objective.DEVICES)
    answer = plan(request)
    assert answer.devices == 1 and answer.predicted is not None
    fastest = max(value for (name, replicas, *_), value in answers_per_s(request).items() if (name, replicas) == ("tp 1", 1))
    assert answer.predicted.tokens_per_s == pytest.approx(100.0 * fastest)


def test_a_trace_is_counted_from_its_first_request_to_its_last() -> None:
    """Also one that is longer than simulations of other arrivals are."""
    trace = TraceArrivals("trace", tuple(0.01 * k for k in range(300)), (1000,) * 300, (50,) * 300)
    traffic = Traffic(workload(trace), seed=0, requests=100)
    (whole,) = traffic.streams(Share(trace.requests_per_s), 100)
    assert (len(whole), whole.is_finite) == (300, True)
    assert [part.is_finite for part in traffic.streams(Share(trace.requests_per_s, 3))] == [True] * 3
    for arrivals in (PoissonArrivals("poisson", 5.0), GammaArrivals("gamma", 5.0, 2.0)):
        (piece,) = Traffic(workload(arrivals), seed=0, requests=100).streams(Share(5.0))
        assert not piece.is_finite


@pytest.mark.parametrize("mode", [ServingMode.AGGREGATED, ServingMode.DISAGGREGATED])
def test_a_plan_for_a_trace_counts_all_of_it(mode: ServingMode) -> None:
    trace = TraceArrivals("trace", tuple(0.01 * k for k in range(300)), (1000,) * 300, (50,) * 300)
    asked = replace(request(trace), slo=Slo(), search=Search(modes=(mode,)))
    assert simulate(asked, plan(asked)).counted == 300
