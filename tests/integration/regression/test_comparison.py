"""Rules that no small request breaks by itself, on made-up figures; and laws of the comparison."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.app.base.errors import SolverCrashError
from meshwright.app.base.settings import Settings
from meshwright.app.cli.commands.stored_plans import open_store
from meshwright.app.regression.comparison import Planned, compare, relative_loss
from meshwright.app.regression.lock import Action, Policy
from meshwright.app.regression.locked_plan import LockedPlan, locked_plan, seal_of
from meshwright.app.regression.planning import LocalPlanner, is_proven, without_limits
from meshwright.app.regression.report import FindingRule, PlanCheck, Severity, Verdict
from meshwright.app.requests.digests import KeyedRequest, keyed_request
from meshwright.app.requests.resolve import request_document
from meshwright.costmodels.errors import MeshwrightError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.problem.request import PlanRequest
from tests.support.fakes import FakeSolver, feasible_plan, infeasible_plan, undecided_plan
from tests.support.requests_given import resolved, training

PLAN = feasible_plan(resolved())


def entry(**figures: float) -> LockedPlan:
    made = locked_plan(PLAN, "sha256:0", request_document(resolved()))
    changed = replace(made, figures={**made.figures, **figures})
    return replace(changed, seal=seal_of(changed))


def compared(was: LockedPlan, now: LockedPlan, policy: Policy | None = None) -> PlanCheck:
    return compare("a.plan.yaml", was, Planned(PLAN, now), policy or Policy(), accept="meshwright check . --update")


def test_a_risen_gap_fails_beyond_the_tolerance() -> None:
    assert compared(entry(gap=0.0), entry(gap=0.009)).verdict is Verdict.CHANGED
    check = compared(entry(gap=0.0), entry(gap=0.03))
    assert check.verdict is Verdict.WORSE
    assert check.findings[0].message.startswith("gap of the certificate 0% -> 3.0%")
    assert compared(entry(gap=0.0), entry(gap=0.03), Policy(gap_tolerance=0.05)).passed


@pytest.mark.parametrize(("action", "severity"), [(Action.FAIL, Severity.ERROR), (Action.WARN, Severity.WARNING)])
def test_more_devices(action: Action, severity: Severity) -> None:
    (finding,) = compared(entry(devices=8), entry(devices=12), Policy(devices=action)).findings
    assert (finding.rule, finding.severity, finding.message) == (FindingRule.DEVICES, severity, "more devices: 8 -> 12")
    assert compared(entry(devices=8), entry(devices=12), Policy(devices=Action.ALLOW)).findings == ()


def test_a_difference_without_a_changed_input_is_said_to_be_one() -> None:
    check = compared(entry(tokens_per_s=100.0), entry(tokens_per_s=90.0))
    assert check.findings[0].cause.startswith("no input and no version changed: solver or cost models changed without")


def test_throughput_is_told_once_and_step_time_when_it_alone_got_worse() -> None:
    both = compared(entry(tokens_per_s=99.0, step_time_s=1.0), entry(tokens_per_s=90.0, step_time_s=1.1))
    assert [finding.rule for finding in both.findings] == [FindingRule.THROUGHPUT]
    larger_batch = compared(entry(tokens_per_s=100.0, step_time_s=1.0), entry(tokens_per_s=100.0, step_time_s=2.0))
    assert [finding.rule for finding in larger_batch.findings] == [FindingRule.LATENCY]


def test_a_figure_that_is_not_known_any_more_is_a_warning() -> None:
    check = compared(entry(cost_per_million_tokens=1.0), entry())
    assert (check.verdict, check.findings[0].message) == (Verdict.WARNED, "cost per million tokens is not known any more")


@pytest.mark.parametrize(("now", "verdict"), [(99.1, Verdict.CHANGED), (98.9, Verdict.WORSE), (100.9, Verdict.CHANGED)])
def test_one_per_cent_is_the_default_tolerance(now: float, verdict: Verdict) -> None:
    assert compared(entry(tokens_per_s=100.0), entry(tokens_per_s=now)).verdict is verdict


@given(was=st.floats(1e-6, 1e12), share=st.floats(-0.9, 10.0))
def test_the_tolerance_is_where_it_is_said_to_be(was: float, share: float) -> None:
    now = was * (1 - share) if share < 1 else was / (1 + share)
    loss = relative_loss(was, now, higher_is_better=True)
    check = compared(entry(tokens_per_s=was, step_time_s=1.0), entry(tokens_per_s=now, step_time_s=1.0))
    assert check.passed == (loss <= Policy().throughput_tolerance)


@given(was=st.floats(1e-6, 1e12), now=st.floats(1e-6, 1e12))
def test_what_is_worse_one_way_is_better_the_other(was: float, now: float) -> None:
    higher, lower = (relative_loss(was, now, higher_is_better=way) for way in (True, False))
    assert higher == pytest.approx(-lower)


def planned_with(solver: FakeSolver, *keys: KeyedRequest) -> dict[str, Plan | MeshwrightError]:
    return LocalPlanner(store=None, solver=solver, jobs=2, warn=lambda _: None).plan_all(keys)


class RecordingSolver(FakeSolver):
    """Keeps the requests; its plans are those of a search that a limit stopped, or proven ones."""

    def __init__(self, status: Status):
        super().__init__()
        self.status, self.asked = status, list[PlanRequest]()

    def __call__(self, request: PlanRequest) -> Plan:
        self.asked.append(request)
        plan = super().__call__(request)
        return replace(plan, certificate=replace(plan.certificate, status=self.status))


@pytest.mark.parametrize(("status", "solves"), [(Status.OPTIMAL, 1), (Status.FEASIBLE, 2)])
def test_only_a_proven_plan_is_taken_from_the_store(settings: Settings, status: Status, solves: int) -> None:
    solver, key = RecordingSolver(status), keyed_request(resolved(training(search={"time_limit_s": 1.0})))
    planner = LocalPlanner(open_store(settings), solver, jobs=2, warn=lambda _: None)
    first, second = (planner.plan_all([key])[key.digest] for _ in range(2))
    assert len(solver.asked) == solves
    assert isinstance(first, Plan) and isinstance(second, Plan)
    assert replace(second, digest="") == replace(first, digest="")
    assert all(request.search.time_limit_s > 3600 for request in solver.asked)


def test_equal_requests_are_solved_once() -> None:
    solver = FakeSolver()
    answers = planned_with(solver, *(keyed_request(resolved()) for _ in range(3)))
    assert (len(answers), solver.calls, solver.closed) == (1, 1, True)


def test_a_crash_is_the_answer_for_its_request() -> None:
    key = keyed_request(resolved())
    answers = planned_with(FakeSolver(failure=SolverCrashError("out of memory")), key)
    assert isinstance(answers[key.digest], SolverCrashError)


def test_no_plan_depends_on_how_fast_the_machine_is() -> None:
    request = resolved(training(search={"time_limit_s": 1.0}))
    assert without_limits(request).search.time_limit_s > 3600
    assert (without_limits(request).search.memory_limit_bytes or 0) > 2**40
    stopped = replace(PLAN, certificate=replace(PLAN.certificate, status=Status.FEASIBLE))
    unfinished = undecided_plan(request)
    assert [is_proven(plan) for plan in (PLAN, infeasible_plan(request), stopped, unfinished)] == [True, True, False, False]
