"""Solves as jobs run them, ended at a look at their limit: what crosses to the worker is an answer, never an error."""

from __future__ import annotations

from functools import partial
from unittest import mock

import pytest

from meshwright.app.base import solving
from meshwright.app.base.errors import SolveTimeoutError
from meshwright.app.base.solving import solve_here
from meshwright.app.service.sandbox import ChildSolver, SoFar
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import OnProgress, Stop
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.suggestions import gain_over
from tests.support.requests_given import resolved, serving, training
from tests.support.stopping import TIE, LookLimit, whole

NARROW = {"tp": [1, 2], "pp": [1, 2], "cp": [1], "microbatch": [1], "recompute": ["none", "full"], "zero_stages": [1]}
REQUESTS = {
    "training": training(search=NARROW),
    "free": training(search=NARROW | {"space": "free", "dp": [4, 8]}),
    "serving": serving(search={"tp": [1, 2], "pp": [1]}),
}


def ended_by(stop: Stop, request: PlanRequest, on_progress: OnProgress) -> Plan:
    """The plan of a job's search whose limit of time is another rule."""
    with mock.patch.object(solving.TimeLimit, "after", staticmethod(lambda limit_s: stop)):
        return solve_here(request, on_progress)


def ended_at(look: int, request: PlanRequest, on_progress: OnProgress) -> Plan:
    """The same, ended at a look."""
    return ended_by(LookLimit(look), request, on_progress)


@pytest.mark.slow
@pytest.mark.parametrize("kind", REQUESTS)
def test_a_job_s_search_answers_whatever_look_ends_it(kind: str) -> None:
    request = resolved(REQUESTS[kind])
    n_looks = whole(lambda stop, progress: ended_by(stop, request, progress)).n_looks
    for at in sorted({1, 2, 3, 5, 8, *range(13, n_looks + 1, max(1, n_looks // 8))}):
        so_far = SoFar()
        plan = ended_by(LookLimit(at), request, so_far.hear)
        assert plan.feasible or plan.certificate.status is Status.UNDECIDED
        # What its worker would answer had the search been ended from outside is no better.
        known = so_far.answer(request, SolveTimeoutError("ended"))
        assert gain_over(known, plan) >= -TIE or not known.feasible


@pytest.mark.slow
@pytest.mark.parametrize("kind", REQUESTS)
def test_a_child_answers_whatever_look_ends_its_search(kind: str) -> None:
    request = resolved(REQUESTS[kind])
    for at in (1, 21, 60, 120):
        plan = ChildSolver(partial(ended_at, at))(request)
        assert plan.feasible or plan.certificate.status is Status.UNDECIDED
