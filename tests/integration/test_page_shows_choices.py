"""The page of a plan says every choice that the plan made, one that someone adds tomorrow too."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from meshwright.app.cli.pages.plan_page import NextStep, print_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import PlanRequest
from tests.integration.regression.structure import PLACED, kind_of, otherwise, planned
from tests.support.requests_given import resolved, serving, training


def page(plan: Plan, request: PlanRequest) -> str:
    console = Console(file=StringIO(), width=80)
    print_plan(console, plan, request, NextStep("not kept", None), full=True)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.slow_beyond(5)
@pytest.mark.parametrize("name", PLACED)
def test_a_plan_that_differs_in_a_choice_has_another_page(name: str) -> None:
    request = resolved(training() if kind_of(name) == "training" else serving())
    plan = planned(kind_of(name))
    assert page(plan, request) != page(otherwise(plan, name), request)
