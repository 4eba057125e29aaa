"""The best plan so far of a search: checked, true to its figures, getting better, and of no influence on the answer."""

from __future__ import annotations

import time
from typing import Any

import pytest

from meshwright.app.requests.plan_documents import plan_document
from meshwright.app.service.sandbox import BEAT_S, PROGRESS_EVERY_S, ChildSolver
from meshwright.costmodels.calibration.calibration import calibrations_in_force
from meshwright.solver import api, planners
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import OnProgress, Progress, ignore_progress, never_stop
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.verify.check import check
from tests.support.fakes import feasible_plan
from tests.support.requests_given import resolved, serving, training

REQUESTS = {
    "training": training(),
    "serving": serving(),
    "goodput": serving(objective="throughput", search={"modes": ["aggregated"]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("document", REQUESTS.values(), ids=REQUESTS)
def test_best_plans_so_far_pass_the_checker_and_change_nothing(document: dict[str, Any]) -> None:
    request = resolved(document)
    seen: list[tuple[Progress, Plan]] = []

    def listen(moment: Progress) -> None:
        plan = None if moment.incumbent is None else moment.incumbent()
        if plan is not None:
            seen.append((moment, plan))

    answer = api.solve(request, stop=never_stop, progress=listen)
    assert plan_document(answer) == plan_document(api.solve(request, stop=never_stop, progress=ignore_progress))
    assert seen
    objectives = []
    for moment, plan in seen:
        with calibrations_in_force(request.calibrations):
            assert not check(plan, request)
        certificate = plan.certificate
        assert certificate.objective is not None and certificate.bound is not None
        assert certificate.bound <= answer.certificate.objective <= certificate.objective  # type: ignore[operator]
        assert moment.bound is None or certificate.bound == min(moment.bound, certificate.objective)
        objectives.append(certificate.objective)
    assert objectives == sorted(objectives, reverse=True)


def test_a_plan_that_the_checker_refuses_is_shown_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Plan | None] = []

    def plans(request: PlanRequest, *, stop: object, progress: OnProgress) -> Plan:
        wrong = feasible_plan(request)
        progress(Progress(1, 2, best=1.0, bound=1.0, incumbent=lambda: wrong))
        raise ZeroDivisionError

    monkeypatch.setattr(planners, "plan_training", plans)
    with pytest.raises(ZeroDivisionError):
        api.solve(
            resolved(), stop=never_stop, progress=lambda moment: shown.append(moment.incumbent() if moment.incumbent else None)
        )
    assert shown == [None]


def improves(request: PlanRequest, on_progress: OnProgress) -> Plan:
    plan = feasible_plan(request)
    on_progress(Progress(1, 3, best=16.0, bound=1.0, incumbent=lambda: plan))
    time.sleep(PROGRESS_EVERY_S)
    on_progress(Progress(2, 3, best=16.0, bound=2.0, incumbent=_never_asked))
    time.sleep(BEAT_S)
    return plan


def _never_asked() -> Plan:
    raise AssertionError("the same best is not made twice")


def test_best_plans_come_out_of_the_child() -> None:
    told: list[Progress | None] = []
    plan = ChildSolver(improves)(resolved(), told.append)
    heard = [moment for moment in told if moment is not None]
    assert heard[-1].bound == 2.0
    assert [moment.incumbent() for moment in heard if moment.incumbent is not None] == [plan]
