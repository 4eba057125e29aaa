"""Plans of least energy: what enumeration finds, what bounds say, and that idle devices cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import ClosedArrivals, LognormalLength
from meshwright.solver.serving import plan_serving, predict_serving
from meshwright.solver.serving.engines.engine import EngineBuilder
from meshwright.solver.serving.engines.layouts import layouts
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.explain import explain_layouts
from meshwright.solver.serving.promise.certificates import energy_per_token_j, least_energy_per_token_j
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.promised import promised_of
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.unit.solver.serving.enumeration import best_objective
from tests.unit.solver.serving.requests import cluster, serving_request
from tests.unit.solver.verify.changes import changed

DISAGGREGATED = Search(modes=(ServingMode.DISAGGREGATED,), pp=(1,))

pytestmark = pytest.mark.usefixtures("short_simulations", "few_batch_limits")


def plan(request: ServingRequest) -> Plan:
    answer = plan_serving(request, stop=never_stop, progress=ignore_progress)
    assert check(answer, request) == ()
    return answer


def asked(rate: float = 9.0, *, search: Search | None = None, on: Cluster | None = None) -> ServingRequest:
    return serving_request(
        rate=rate, ttft_ms=400.0, tpot_ms=12.0, objective=Objective.ENERGY, search=search, on=on or cluster(per_node=2)
    )


def two_kinds() -> Cluster:
    return Cluster(tuple(cluster(node=node, name=node, per_node=2).groups[0] for node in ("dgx-h100", "dgx-b200")))


@pytest.mark.parametrize(
    "request_",
    [
        asked(),
        asked(1.0, on=two_kinds(), search=Search(pp=(1,))),
        asked(search=DISAGGREGATED),
        asked(60.0),
    ],
)
def test_the_search_finds_what_enumeration_finds(request_: ServingRequest) -> None:
    answer = plan(request_)
    assert answer.certificate.objective == best_objective(request_, found=None)
    if answer.feasible:
        assert answer.certificate.status is Status.OPTIMAL
        assert answer.certificate.unit == "J/token"


def test_clients_of_a_closed_loop_wait_beside_idle_devices() -> None:
    request = asked(search=Search(pp=(1,)))
    clients = replace(request, workload=replace(request.workload, arrivals=ClosedArrivals("closed", 6)))
    assert plan(clients).certificate.objective == best_objective(clients, found=None)


def test_a_plan_predicts_and_explains_itself() -> None:
    request = asked(3.0)
    answer = plan(request)
    assert answer.predicted is not None
    assert answer.predicted.energy_per_token_j == answer.certificate.objective
    assert predict_serving(request, answer).predicted == answer.predicted
    rows = explain_layouts(request, answer, "layouts")
    beaten = [row for row in rows if row.unit == "J/token"]
    assert beaten
    assert all(row.need is not None and row.have is not None and row.need >= row.have for row in beaten)


def test_power_and_energy_are_checked() -> None:
    request = asked()
    answer = plan(request)
    assert answer.predicted is not None and answer.predicted.power_w is not None

    def rules(path: str, value: float | None) -> set[Rule]:
        return {violation.rule for violation in check(changed(answer, path, value), request)}

    assert rules("predicted.power_w", 69.0 * answer.devices) == {Rule.ENERGY}
    assert rules("predicted.power_w", 701.0 * answer.devices) == {Rule.ENERGY}
    assert rules("predicted.power_w", None) == {Rule.ENERGY}
    assert rules("certificate.objective", 1.1 * (answer.certificate.objective or 0.0)) == {Rule.CERTIFICATE}


def test_no_run_takes_less_than_the_bound_and_more_replicas_idle_more() -> None:
    request = serving_request(rate=3.0, prompt=LognormalLength(1000.0, 3000.0), output=LognormalLength(100.0, 250.0))
    evaluator = Evaluator(request.workload, promised_of(request), 0)
    builder = EngineBuilder(request, sequence_tokens=evaluator.longest_request)
    for layout in list(layouts(request))[:4]:
        for candidate in evaluator.candidates(builder.engine(layout))[:2]:
            joules = []
            for replicas in (1, 2):
                share = Share(3.0, replicas)
                measured = evaluator.measure_fully(candidate, share)
                joules.append(energy_per_token_j(measured, evaluator))
                assert joules[-1] >= least_energy_per_token_j(candidate, share, evaluator)
            assert joules[1] > joules[0]
