"""Plans of several kinds of workers: search against enumeration, plan, prediction, simulation and rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import PlanFileError, WorkloadError
from meshwright.solver.answer.layouts import Kinds, Replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.answer.stage import DeviceRange
from meshwright.solver.api import explain, predict, simulate
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import FrontierScope, Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import ClosedArrivals, GammaArrivals, PoissonArrivals, TraceArrivals
from meshwright.solver.serving import plan_serving
from meshwright.solver.serving.explain import Excluded
from meshwright.solver.serving.forms.kinds.answer import kind_requests, weighted_turns
from meshwright.solver.verify import Rule
from meshwright.solver.verify.check import check
from tests.support.flat_plans import flat, with_fields
from tests.support.serving_layouts import kinds_of, replicas_of
from tests.unit.solver.serving.kinds_enumeration import best_of_two_kinds, better
from tests.unit.solver.serving.requests import cluster, serving_request
from tests.unit.solver.verify.changes import changed

TWO = Search(tp=(1, 2, 4), pp=(1, 2), worker_kinds=2)
BOTH_TYPES = Cluster(
    tuple(cluster(node=node, name=name, per_node=2).groups[0] for name, node in (("old", "dgx-a100"), ("new", "dgx-h100")))
)

pytestmark = pytest.mark.usefixtures("short_simulations", "few_batch_limits")


def asked(*, search: Search = TWO, **changes: object) -> ServingRequest:
    given = {"rate": 24.0, "ttft_ms": 400.0, "tpot_ms": 25.0, "search": search, "on": BOTH_TYPES}
    return serving_request(**(given | changes))  # type: ignore[arg-type]


def plan(request: ServingRequest) -> Plan:
    answer = plan_serving(request, stop=never_stop, progress=ignore_progress)
    assert check(answer, request) == ()
    return answer


def one_kind(request: ServingRequest) -> ServingRequest:
    return replace(request, search=replace(request.search, worker_kinds=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "rate", "ttft_ms", "tpot_ms"),
    [
        (Objective.THROUGHPUT, 1.0, 400.0, 25.0),
        (Objective.THROUGHPUT, 1.0, 150.0, 12.0),
        (Objective.DEVICES, 21.0, 400.0, 25.0),
        (Objective.COST, 11.5, 600.0, 14.0),
    ],
)
def test_the_search_finds_what_enumeration_finds(objective: Objective, rate: float, ttft_ms: float, tpot_ms: float) -> None:
    search = replace(TWO, tp=(1, 2), pp=(1,))
    request = asked(search=search, objective=objective, rate=rate, ttft_ms=ttft_ms, tpot_ms=tpot_ms)
    answer, single = plan(request), plan(one_kind(request))
    own = single.certificate.objective
    best = better(request, own, best_of_two_kinds(request))
    assert answer.certificate.objective == (None if best is None else pytest.approx(best))
    if answer.feasible:
        assert answer.certificate.status is Status.OPTIMAL
        # Of equals the plan of one kind stays.
        assert isinstance(answer.layout, Kinds) == (own is None or answer.certificate.objective < own * (1 - 1e-9))  # type: ignore[operator]


def test_no_device_is_stranded() -> None:
    # A replica of four devices leaves two over, which a kind of two takes up; replicas of two alone do less.
    odd = cluster(nodes=3, per_node=2)
    search = Search(tp=(2,), pp=(1, 2), dp=(1,), worker_kinds=2)
    request = asked(on=odd, search=search, objective=Objective.THROUGHPUT, rate=1.0)
    single, mixed = plan(one_kind(request)), plan(request)
    assert single.devices < 6
    assert any("left over" in note for note in single.notes)
    assert mixed.devices == 6
    assert [kind.devices for kind in flat(mixed).kinds] == [2, 4]
    assert not any("left over" in note for note in mixed.notes)


@pytest.fixture(scope="module")
def mixed() -> tuple[ServingRequest, Plan]:
    """A load that neither type of device keeps up with alone."""
    request = asked()
    with pytest.MonkeyPatch.context() as patch:
        from meshwright.solver.serving.forms.pools import pools
        from meshwright.solver.serving.promise import evaluation
        from meshwright.solver.serving.promise import evaluation as one_layout
        from meshwright.solver.serving.workers import simulation

        for module in (evaluation, pools, simulation):
            patch.setattr(module, "REQUESTS", 1500)
        for module in (evaluation, pools):
            patch.setattr(module, "SCREENING_REQUESTS", 300)
        patch.setattr(one_layout, "STEP_TOKENS", (1024, 4096))
        patch.setattr(one_layout, "SEQUENCES", (4, 16, 64))
        return request, plan(request)


def test_a_plan_says_everything(mixed: tuple[ServingRequest, Plan]) -> None:
    request, answer = mixed
    assert not plan(one_kind(request)).feasible
    assert answer.predicted is not None
    kinds = kinds_of(answer).kinds
    assert sum(kind.share for kind in kinds) == pytest.approx(1.0)
    assert answer.predicted.tokens_per_s == pytest.approx(2400.0)
    assert answer.devices == sum(kind.devices for kind in kinds)
    late = [kind.predicted.ttft_p95_s for kind in kinds]
    assert min(late) <= answer.predicted.ttft_p95_s <= max(late)  # type: ignore[type-var, operator]
    assert {"ttft_p95_s", "tpot_p95_s"} <= set(answer.predicted.bands)


def test_a_plan_predicts_and_simulates_itself(mixed: tuple[ServingRequest, Plan]) -> None:
    request, answer = mixed
    again = predict(request, answer)
    assert check(again, request) == ()
    assert (again.predicted, again.layout) == (answer.predicted, answer.layout)
    found = simulate(request, answer)
    assert answer.predicted is not None
    assert (found.ttft.p95.value, found.missed) == (answer.predicted.ttft_p95_s, ())
    assert found.requests_per_s == pytest.approx(24.0, rel=0.1)
    kinds = kinds_of(answer).kinds
    assert [kind.simulated.ttft.p95.value for kind in found.kinds] == [kind.predicted.ttft_p95_s for kind in kinds]
    busier = predict(asked(rate=90.0), answer)
    assert busier.reason is not None
    assert busier.reason.need > busier.reason.have


def test_a_goodput_predicts_itself() -> None:
    request = asked(rate=1.0, objective=Objective.THROUGHPUT)
    answer = plan(request)
    assert kinds_of(answer)
    assert predict(request, answer).predicted == answer.predicted


def test_layouts_of_a_plan_are_its_own(mixed: tuple[ServingRequest, Plan]) -> None:
    request, answer = mixed
    rows = explain(request, answer, "layouts")
    own = [row for row in rows if row.excluded_by is Excluded.NOTHING]
    assert {(row.group, row.replicas) for row in own} == {
        ("old" if workers.device_ranges[0].first < 2 else "new", workers.count) for workers in kinds_of(answer).all_workers
    }


def test_a_load_that_no_mix_keeps_says_what_one_does() -> None:
    answer = plan(asked(rate=400.0))
    assert answer.reason is not None
    assert answer.reason.constraint == "requests_per_s"
    assert "beside" in answer.reason.message
    single = plan(one_kind(asked(rate=400.0)))
    assert single.reason is not None
    assert answer.reason.have > single.reason.have


def test_bursts_and_traces_are_shared_too(mixed: tuple[ServingRequest, Plan]) -> None:
    request, answer = mixed
    workload = request.workload
    bursts = replace(request, workload=replace(workload, arrivals=GammaArrivals("gamma", 9.0, 2.0)))
    first, second = kind_requests(bursts, [0.25, 0.75], [2.5, 7.5])
    assert first.workload.arrivals == GammaArrivals("gamma", 2.5, 1.75**0.5)  # type: ignore[union-attr]
    assert second.workload.arrivals == GammaArrivals("gamma", 7.5, 3.25**0.5)  # type: ignore[union-attr]
    assert weighted_turns([0.25, 0.75], 8) == [1, 0, 1, 1, 1, 0, 1, 1]
    n = 1200
    trace = TraceArrivals("trace", tuple(i / 10.0 for i in range(n)), (2000,) * n, (100,) * n, tuple(range(n)))
    dealt = replace(request, workload=replace(workload, arrivals=trace, prompt_tokens=None, output_tokens=None))
    rare, often = (kind.workload.arrivals for kind in kind_requests(dealt, [0.25, 0.75], [2.5, 7.5]))  # type: ignore[union-attr]
    assert (rare.cached_tokens[:2], often.cached_tokens[:2]) == ((1, 5), (0, 2))  # type: ignore[union-attr]
    for given in (bursts, dealt):
        found = simulate(given, answer)
        assert found.missed == ()
        assert found.requests_per_s == pytest.approx(10.0, rel=0.2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": Objective.ENERGY}, "energy"),
        ({"search": replace(TWO, modes=(ServingMode.DISAGGREGATED,))}, "disaggregated"),
        ({"search": replace(TWO, frontier=FrontierScope.SWEPT)}, "swept"),
    ],
)
def test_what_kinds_can_not_be_asked(changes: dict[str, object], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        plan(asked(**changes))


def test_clients_in_a_closed_loop_are_not_shared(mixed: tuple[ServingRequest, Plan]) -> None:
    request, answer = mixed
    clients = replace(request, workload=replace(request.workload, arrivals=ClosedArrivals("closed", 4)))
    for asking in (plan, lambda given: simulate(given, answer)):
        with pytest.raises(WorkloadError, match="closed"):
            asking(clients)


def test_one_broken_thing_breaks_its_own_rules(mixed: tuple[ServingRequest, Plan]) -> None:
    request, answer = mixed
    first, second = kinds_of(answer).kinds
    assert answer.predicted is not None

    def rules(*kinds: object, of: ServingRequest = request, **fields: object) -> set[Rule]:
        broken = replace(answer, **fields)  # type: ignore[arg-type]
        broken = replace(broken, layout=Kinds(kinds)) if kinds else broken  # type: ignore[arg-type]
        return {violation.rule for violation in check(broken, of)}

    assert rules() == set()
    assert rules(of=one_kind(request)) == {Rule.SEARCH}
    assert rules(replace(first, share=0.9 * first.share), second) == {Rule.BATCH}
    busier = replace(first, requests_per_s=2.0 * first.requests_per_s)
    assert Rule.TOKENS in rules(busier, second)
    stages = second.replicas.stages
    over = tuple(replace(stage, devices=first.replicas.stages[0].devices) for stage in stages)
    assert rules(first, changed(second, "replicas.stages", over)) == {Rule.DEVICES}
    moved = tuple(replace(s, devices=tuple(DeviceRange(d.first + 64, d.count) for d in s.devices)) for s in stages)
    assert rules(first, changed(second, "replicas.stages", moved)) == {Rule.DEVICES}
    slow = replace(first, predicted=replace(first.predicted, ttft_p95_s=1.0))
    assert rules(slow, second) == {Rule.SLO}
    assert rules(predicted=replace(answer.predicted, ttft_p95_s=0.399)) == {Rule.SLO}
    assert rules(predicted=replace(answer.predicted, power_w=1.0)) == {Rule.ENERGY}
    with pytest.raises(PlanFileError, match="axes in a serving plan of the form: kinds"):
        with_fields(answer, axes=first.replicas.axes)
    heads = changed(first, "replicas.axes.tp", 3)
    heads = changed(heads, "replicas.stages", tuple(changed(stage, "axes.tp", 3) for stage in first.replicas.stages))
    assert rules(heads, second) & {Rule.DEVICES, Rule.DIVISIBILITY}
    with pytest.raises(PlanFileError, match="sum to 1"):
        predict(request, replace(answer, layout=Kinds((first, replace(second, share=0.1)))))


def test_poisson_arrivals_stay_poisson() -> None:
    request = asked()
    (own,) = kind_requests(request, [1.0], [30.0])
    assert own.workload.arrivals == PoissonArrivals("poisson", 30.0)  # type: ignore[union-attr]
    assert own.search.worker_kinds == 1


def test_one_kind_stays_where_two_do_no_more() -> None:
    request = asked(on=cluster(per_node=2), search=replace(TWO, pp=(1,)), objective=Objective.THROUGHPUT, rate=1.0)
    answer, single = plan(request), plan(one_kind(request))
    assert isinstance(answer.layout, Replicas)
    assert answer.certificate.status is Status.OPTIMAL
    assert (answer.layout.axes, answer.predicted) == (replicas_of(single).axes, single.predicted)
    assert "2 kinds of workers" in answer.certificate.space
