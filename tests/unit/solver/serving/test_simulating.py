"""Simulations of given plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.costmodels.errors import InfeasibleError, PlanFileError, WorkloadError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.api import simulate
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.serving_load import ClosedArrivals
from meshwright.solver.serving import plan_serving
from tests.unit.solver.serving.requests import cluster, serving_request
from tests.unit.solver.verify.plans import training_request

pytestmark = pytest.mark.usefixtures("short_simulations")


def planned(request: ServingRequest) -> Plan:
    return plan_serving(request, stop=never_stop, progress=ignore_progress)


def test_a_plan_sees_what_it_was_promised() -> None:
    request = serving_request(rate=5.0)
    plan = planned(request)
    found = simulate(request, plan)
    assert plan.predicted is not None
    assert found.ttft.p95.value == plan.predicted.ttft_p95_s
    assert found.tpot is not None
    assert found.tpot.p95.value == plan.predicted.tpot_p95_s
    assert found.missed == ()
    assert found.requests_per_s == pytest.approx(5.0, rel=0.1)
    assert found.output_tokens_per_s == pytest.approx(100 * found.requests_per_s)


def test_percentiles_are_in_order() -> None:
    request = serving_request(rate=5.0)
    found = simulate(request, planned(request))
    for distribution in (found.ttft, found.tpot, found.end_to_end):
        assert distribution is not None
        values = [percentile.value for percentile in distribution.percentiles]
        assert values == sorted(values)
        assert all(p.low <= p.value <= p.high for p in distribution.percentiles)


def test_a_missed_target_is_named() -> None:
    plan = planned(serving_request(rate=5.0))
    assert "p95_ttft" in simulate(serving_request(rate=500.0), plan).missed
    assert simulate(serving_request(rate=5.0, tpot_ms=1.0), plan).missed == ("p95_tpot",)


def test_clients_that_wait_are_simulated() -> None:
    request = serving_request(rate=5.0)
    clients = replace(request, workload=replace(request.workload, arrivals=ClosedArrivals("closed", 3)))
    assert simulate(clients, planned(clients)).peak_running == 3


def test_what_is_not_a_plan_of_the_request_is_refused() -> None:
    plan = planned(serving_request(rate=5.0))
    with pytest.raises(PlanFileError):
        simulate(serving_request(on=cluster(per_node=1), rate=5.0), planned(serving_request(rate=60.0, ttft_ms=300.0)))
    with pytest.raises(WorkloadError, match="only serving"):
        simulate(training_request(), plan)
    with pytest.raises(InfeasibleError, match="does not fit"):
        simulate(serving_request(on=cluster(node="l4-pcie"), model_name="qwen3-32b"), plan)
