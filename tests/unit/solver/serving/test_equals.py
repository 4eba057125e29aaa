"""Serving plans within the noise of ranking: each is a plan of the request, the most different and the plainest are named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.app.base.plan_words import equals_in_words
from meshwright.app.requests.named_plans import request_of_name
from meshwright.solver.answer.plan import Plan
from meshwright.solver.api import solve
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import ClosedArrivals
from meshwright.solver.serving.planning import MOST_TO_TRY, WITHIN, equal_plans
from meshwright.solver.serving.promise.promised import KeptPlan
from tests.unit.solver.serving.requests import cluster, serving_request

pytestmark = pytest.mark.usefixtures("short_simulations", "few_batch_limits")

BOTH = (ServingMode.AGGREGATED, ServingMode.DISAGGREGATED)


def run(request: ServingRequest) -> Plan:
    return solve(request, stop=never_stop, progress=ignore_progress)


def goodput(modes: tuple[ServingMode, ...] = BOTH) -> ServingRequest:
    search = Search(modes=modes)
    return serving_request(rate=8.0, confidence=0.9, ttft_ms=800.0, tpot_ms=30.0, objective=Objective.THROUGHPUT, search=search)


def clients(n: int) -> ServingRequest:
    request = serving_request(ttft_ms=None, tpot_ms=None, objective=Objective.THROUGHPUT)
    return replace(request, workload=replace(request.workload, arrivals=ClosedArrivals("closed", n)))


ASKED = {
    "answers of clients": clients(16),
    "devices": serving_request(rate=24.0, tpot_ms=30.0, ttft_ms=800.0, on=cluster(per_node=8)),
    "energy": serving_request(rate=24.0, tpot_ms=30.0, ttft_ms=800.0, objective=Objective.ENERGY, on=cluster(per_node=8)),
    "goodput": goodput((ServingMode.AGGREGATED,)),
}


@pytest.mark.parametrize("objective", list(ASKED))
def test_every_equal_plan_is_a_plan_of_the_request(objective: str) -> None:
    request = ASKED[objective]
    plan = run(request)
    equals, own = plan.equals, plan.certificate.objective
    assert equals is not None and own is not None
    assert len(equals.also_try) == min(MOST_TO_TRY, equals.count - 1)
    assert len({each.summary for each in equals.also_try}) == len(equals.also_try)
    assert equals_in_words(equals).startswith(f"At least {equals.count} plans are equal within 14%")
    for each in equals.also_try:
        assert each.objective is not None and own * (1 - 1e-9) <= each.objective <= own * (1 + WITHIN)
        assert each.step_time_s is None and each.chance_out_of_memory is None
        named = request_of_name(request, each.summary)
        assert isinstance(named, ServingRequest)
        found = run(named)
        assert found.feasible and found.certificate.objective is not None
        assert found.certificate.objective <= each.objective * (1 + 1e-9)


def test_each_objective_has_a_request_with_equals() -> None:
    counts = {name: equals.count for name, request in ASKED.items() if (equals := run(request).equals) is not None}
    assert counts["answers of clients"] > 1 and counts["devices"] > 1 and counts["energy"] > 1, counts


def test_replicas_alike_are_plainer_than_pools() -> None:
    request = goodput()
    plan = run(replace(request, slo=replace(request.slo, p95_ttft_ms=600.0)))
    assert plan.equals is not None and plan.equals.plainest is not None
    assert plan.layout is not None and "Pools" in type(plan.layout).__name__
    plainest = plan.equals.plainest
    assert plainest.summary.endswith("of tp 1") and "instead of" in plainest.differs
    assert plainest.chance_missed is not None and f"{plainest.chance_missed:.1%} chance to miss" in plainest.differs


def kept(name: str, objective: float, *, splits: int = 1, tpot_s: float = 0.01, missed: float | None = 0.05) -> KeptPlan:
    return KeptPlan(name, objective, splits, 0.1, tpot_s, 1e9, missed)


def test_a_class_is_within_the_noise_and_has_each_name_once() -> None:
    plan = run(goodput((ServingMode.AGGREGATED,)))
    own_objective = plan.certificate.objective
    assert own_objective is not None
    own = kept("own", own_objective, splits=2)
    worse = {name: own_objective * (1 + share) for name, share in (("near", 0.05), ("edge", 0.14), ("far", 0.15))}
    met = [
        own,
        kept("near", 1.02 * worse["near"]),
        kept("near", worse["near"]),
        kept("edge", worse["edge"], splits=0, missed=0.0),
        kept("far", worse["far"]),
        kept("as good", own_objective, splits=3, tpot_s=0.05),
    ]
    found = equal_plans(Objective.ENERGY, plan, own, met)
    assert found.count == 4 and not found.all_found and found.within == WITHIN
    by_name = {each.summary: each for each in found.also_try}
    assert set(by_name) == {"near", "edge", "as good"}
    assert by_name["near"].objective == worse["near"] and by_name["near"].differs.startswith("predicted 5.0% more energy; ")
    assert by_name["as good"].differs.startswith("predicted as good; P95 TTFT")
    assert found.plainest is not None and found.plainest.summary == "edge"
    alone = equal_plans(Objective.ENERGY, plan, replace(own, splits=0), [own])
    assert (alone.count, alone.also_try, alone.plainest) == (1, (), None)
