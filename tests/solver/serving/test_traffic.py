"""Ways in which requests arrive, planned and split over replicas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodels.errors import WorkloadError
from solver.control import ignore_progress, never_stop
from solver.plan import Plan
from solver.request import Arrivals, Objective, PlanRequest, ServingWorkload
from solver.serving import plan_serving, predict_serving
from solver.serving.traffic import Share, Traffic
from solver.serving_load import ClosedArrivals, GammaArrivals, PoissonArrivals, TraceArrivals
from solver.verify import check
from tests.solver.serving.requests import serving_request

pytestmark = pytest.mark.usefixtures("short_simulations", "few_batch_limits")


def workload(arrivals: Arrivals, **changes: object) -> ServingWorkload:
    base = serving_request().workload
    assert isinstance(base, ServingWorkload)
    lengths = {"prompt_tokens": None, "output_tokens": None} if isinstance(arrivals, TraceArrivals) else {}
    return replace(base, **({"arrivals": arrivals} | lengths | changes))


def request(arrivals: Arrivals, *, hits: float = 0.0, **changes: object) -> PlanRequest:
    return replace(serving_request(**changes), workload=workload(arrivals, prefix_hit_ratio=hits))  # type: ignore[arg-type]


def plan(of: PlanRequest) -> Plan:
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


def test_too_many_clients_are_named() -> None:
    answer = plan(request(ClosedArrivals("closed", 2000), **HARD))
    assert answer.reason is not None
    assert answer.reason.constraint == "concurrency"
    assert answer.reason.need == 2000.0


def test_clients_have_no_goodput() -> None:
    with pytest.raises(WorkloadError, match="closed loop"):
        plan(request(ClosedArrivals("closed", 4), objective=Objective.THROUGHPUT))
