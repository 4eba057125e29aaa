"""Training searches of every kind, ended at any of their looks at the stopping rule: the answer is a plan that the checker
accepts or says that nothing is decided, and never an exception."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from meshwright.solver import api
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import OnProgress, Stop, ignore_progress, never_stop
from meshwright.solver.problem.choice import Form
from meshwright.solver.problem.choices import FrontierScope, GroupOrder, Improvements, Objective
from meshwright.solver.problem.request import Slo, TrainingRequest
from meshwright.solver.training import planner
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.planner import TrainingForm
from meshwright.solver.training.search.best_first import search
from tests.support.stopping import FIRST_LOOKS, TIE, LookLimit, Whole, assert_answers, solving, whole
from tests.unit.solver.training.instances import random_request
from tests.unit.solver.training.launchable_inside import wide_request
from tests.unit.solver.training.shares import unequal_requests
from tests.unit.solver.training.stagewise import mixed_requests, stagewise_requests

LAUNCHABLE, FREE, TWO_GROUPS = 6, 3, 26
"""Seeds of random requests with a plan: of the launchable space, of the free one, and on two node groups."""


def searching(request: TrainingRequest, **changes: object) -> TrainingRequest:
    return replace(request, search=replace(request.search, **changes))  # type: ignore[arg-type]


def with_a_price(request: TrainingRequest) -> TrainingRequest:
    """The request on devices with a price."""
    groups = tuple(
        replace(group, node=replace(group.node, device=replace(group.node.device, price_per_hour=2.0)))
        for group in request.cluster.groups
    )
    return replace(request, cluster=replace(request.cluster, groups=groups))


def without_room(request: TrainingRequest) -> TrainingRequest:
    """The request on devices with too little memory for any plan."""
    return replace(request, cluster=replace(request.cluster, memory_reserve=0.97))


FEW = 12
"""Looks over the whole of a search at which its plans are compared with one another."""

KINDS: dict[str, Callable[[], TrainingRequest]] = {
    "launchable": lambda: random_request(LAUNCHABLE),
    "free": lambda: random_request(FREE),
    "orders": lambda: searching(random_request(TWO_GROUPS), group_order=GroupOrder.ANY),
    "by_group": lambda: next(unequal_requests(1)),
    "stagewise": lambda: list(stagewise_requests(7))[-1],
    "stagewise_mixed": lambda: list(mixed_requests(2))[-1],
    "devices": lambda: replace(random_request(LAUNCHABLE), objective=Objective.DEVICES),
    "cost": lambda: replace(with_a_price(random_request(FREE)), objective=Objective.COST),
    "energy": lambda: replace(random_request(LAUNCHABLE), objective=Objective.ENERGY),
    "risk_price": lambda: searching(random_request(LAUNCHABLE), price_risk=0.2),
    "frontier": lambda: searching(random_request(LAUNCHABLE), frontier=FrontierScope.SWEPT),
    "improvements": lambda: searching(random_request(LAUNCHABLE), improvements=Improvements.SOLVED),
    "nothing_fits": lambda: without_room(random_request(LAUNCHABLE)),
    "too_slow": lambda: replace(random_request(LAUNCHABLE), slo=Slo(max_step_time_s=1e-9)),
}


@cache
def to_its_end(kind: str) -> Whole:
    return whole(solving(KINDS[kind]()))


@pytest.mark.slow_beyond(4)
@pytest.mark.parametrize("kind", KINDS)
def test_a_search_that_is_ended_at_one_of_its_first_looks_answers(kind: str) -> None:
    assert_answers(solving(KINDS[kind]()), FIRST_LOOKS, beside=to_its_end(kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_search_that_is_ended_at_any_look_answers(kind: str) -> None:
    ended = to_its_end(kind)
    assert_answers(solving(KINDS[kind]()), ended.looks(), beside=ended)


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("kind", ["free", "orders", "by_group", "stagewise_mixed"])
def test_more_looks_never_end_in_a_worse_plan(kind: str) -> None:
    """On one kind of nodes and on two."""
    ended = to_its_end(kind)
    step = ended.n_looks // FEW + 1
    plans = [*assert_answers(solving(KINDS[kind]()), range(step, ended.n_looks, step)), ended.plan]
    found = [math.inf if plan.certificate.objective is None else plan.certificate.objective for plan in plans]
    assert all(later <= earlier * (1.0 + TIE) for earlier, later in itertools.pairwise(found))
    assert found[-1] < math.inf


@pytest.mark.slow
def test_a_listener_may_ask_for_the_plan_at_the_look_that_ends_the_search() -> None:
    """Assert that every look of one search will do: what describes a plan looks at no rule."""
    request = random_request(LAUNCHABLE)
    ended = whole(solving(request))
    assert_answers(solving(request), range(1, ended.n_looks + 2), beside=ended)


@pytest.mark.slow
def test_a_search_that_begins_with_launchable_plans_answers_when_it_is_ended_at_a_look() -> None:
    assert_answers(solving(wide_request()), (1, 2, 5, 20, 60, 150, 400, 1000))


@pytest.mark.slow
def test_trials_are_listed_whatever_look_ends_their_search() -> None:
    request = random_request(LAUNCHABLE)
    plan = to_its_end("launchable").plan
    limit = LookLimit(math.inf)
    every = api.trials(request, plan, most=4, stop=limit, progress=ignore_progress)
    assert limit.looks.so_far > 1 and every
    for at in (*FIRST_LOOKS, *range(34, limit.looks.so_far, 1 + limit.looks.so_far // 10)):
        found = api.trials(request, plan, most=4, stop=LookLimit(at), progress=ignore_progress)
        assert 1 <= len(found) <= 4


def test_costs_within_a_search_are_not_cut_off_after_it() -> None:
    """Assert that a rule which ended a search does not hold for what is asked of its costs later."""
    request = random_request(LAUNCHABLE)
    costs = TrainingCosts(request)
    search(request, costs, stop=LookLimit(40), progress=ignore_progress)
    assert search(request, costs, stop=never_stop, progress=ignore_progress).complete


@pytest.mark.parametrize("kind", ["by_group", "stagewise_mixed"])
def test_what_forms_leave_of_a_limit_goes_to_those_that_their_part_of_it_ended(kind: str) -> None:
    """Assert that a search is proven with three times the looks that it takes to its end, whichever form takes most of them."""
    ended = to_its_end(kind)
    assert ended.plan.certificate.status is Status.OPTIMAL
    proven = api.solve(KINDS[kind](), stop=LookLimit(3 * ended.n_looks), progress=ignore_progress)
    assert proven.certificate.status is Status.OPTIMAL
    assert proven.certificate.objective == pytest.approx(ended.plan.certificate.objective, rel=TIE)


NEARLY = 0.9
"""Share of the looks of a whole search after which it is ended and begun again."""

LEFT = 0.75
"""Share of its looks that are left then at most: equal pipelines know their costs alone, and look 0.6 times as often."""


@pytest.mark.parametrize(
    ("kind", "of"), [("free", Form.UNIFORM), ("by_group", Form.BY_GROUP), ("stagewise_mixed", Form.STAGEWISE)]
)
def test_a_form_that_is_searched_again_goes_on_from_what_it_knows(kind: str, of: Form) -> None:
    request = KINDS[kind]()
    forms = {form.form: form for form in planner.FORMS}
    given = None if of is Form.UNIFORM else forms[Form.UNIFORM].search(request)(None, stop=never_stop, progress=ignore_progress)

    first, then = LookLimit(math.inf), LookLimit(math.inf)
    whole_plan = forms[of].search(request)(given, stop=first, progress=ignore_progress)
    assert whole_plan.certificate.status is Status.OPTIMAL
    search_form = forms[of].search(request)
    search_form(given, stop=LookLimit(NEARLY * first.looks.so_far), progress=ignore_progress)
    again = search_form(given, stop=then, progress=ignore_progress)
    assert again.certificate.status is Status.OPTIMAL
    assert again.certificate.objective == pytest.approx(whole_plan.certificate.objective, rel=TIE)
    assert then.looks.so_far < LEFT * first.looks.so_far


FIRST_NEEDS, LAST_NEEDS = 70, 5
"""Looks of two forms to their proven ends."""


def test_a_form_that_its_part_ended_is_searched_again_with_all_that_others_left(monkeypatch: pytest.MonkeyPatch) -> None:
    request, best = random_request(LAUNCHABLE), to_its_end("launchable").plan
    objective = best.certificate.objective
    assert objective is not None
    unproven = replace(best.certificate, status=Status.FEASIBLE, bound=objective / 2, gap=0.5)
    begun = list[tuple[Form, int]]()

    def form(of: TrainingForm[Any], needs: int, parts: int) -> TrainingForm[Any]:
        def searched(given: Plan | None, *, stop: Stop, progress: OnProgress) -> Plan:
            begun.append((of.form, limit.looks.so_far))
            is_proven = not any(stop() for _ in range(needs)) and (given is None or given.certificate.status is Status.OPTIMAL)
            return best if is_proven else replace(best, certificate=unproven)

        return replace(of, search=lambda _: searched, parts=parts)

    first, by_group, last = planner.FORMS
    monkeypatch.setattr(planner, "FORMS", (form(first, FIRST_NEEDS, 1), by_group, form(last, LAST_NEEDS, 3)))
    monkeypatch.setattr(planner, "forms_asked", lambda _: {first.form, last.form})
    for at, status, times in ((120, Status.OPTIMAL, 2), (90, Status.FEASIBLE, 2), (400, Status.OPTIMAL, 1)):
        begun.clear()
        limit = LookLimit(at)
        plan = planner.plan_training(request, stop=limit, progress=ignore_progress)
        assert plan.certificate.status is status, at
        assert [each for each, _ in begun] == [first.form, last.form] * times
        assert limit.looks.so_far <= at + 2 * LAST_NEEDS
