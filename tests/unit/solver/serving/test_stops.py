"""Serving searches of every kind, ended at any of their looks at the stopping rule: the answer is a plan that the checker
accepts or says that nothing is decided, and never an exception."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest

from meshwright.solver import api
from meshwright.solver.answer.layouts import Kinds, Pools, Replicas, Switched
from meshwright.solver.control import ignore_progress
from meshwright.solver.problem.choices import FrontierScope, Improvements, Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import ClosedArrivals
from meshwright.solver.problem.token_counts import token_count
from meshwright.solver.serving.promise import evaluation
from tests.support.stopping import FIRST_LOOKS, LookLimit, Whole, assert_answers, solving, whole
from tests.unit.solver.serving.layout_of import request_of
from tests.unit.solver.serving.requests import serving_request

pytestmark = pytest.mark.usefixtures("short_simulations", "few_batch_limits")


def searching(request: ServingRequest, **changes: object) -> ServingRequest:
    return replace(request, search=replace(request.search, **changes))  # type: ignore[arg-type]


def aiming(form: type, objective: Objective) -> ServingRequest:
    return replace(request_of(form), objective=objective)


def answering(request: ServingRequest) -> ServingRequest:
    """The request of clients that wait for their answers."""
    return replace(request, workload=replace(request.workload, arrivals=ClosedArrivals(process="closed", concurrency=4)))


KINDS: dict[str, Callable[[], ServingRequest]] = {
    "replicas": lambda: request_of(Replicas),
    "pools": lambda: request_of(Pools),
    "kinds": lambda: request_of(Kinds),
    "switched": lambda: request_of(Switched),
    "replicas_goodput": lambda: aiming(Replicas, Objective.THROUGHPUT),
    "pools_goodput": lambda: aiming(Pools, Objective.THROUGHPUT),
    "kinds_goodput": lambda: aiming(Kinds, Objective.THROUGHPUT),
    "switched_goodput": lambda: aiming(Switched, Objective.THROUGHPUT),
    "replicas_answers": lambda: answering(aiming(Replicas, Objective.THROUGHPUT)),
    "replicas_energy": lambda: aiming(Replicas, Objective.ENERGY),
    "pools_energy": lambda: aiming(Pools, Objective.ENERGY),
    "every_mode": lambda: searching(request_of(Pools), modes=tuple(ServingMode)),
    "interactivity": lambda: searching(request_of(Pools), frontier=FrontierScope.SWEPT),
    "improvements": lambda: searching(request_of(Replicas), improvements=Improvements.SOLVED),
    "nothing_keeps": lambda: serving_request(tpot_ms=2.0, confidence=0.9, search=Search(tp=(1, 2), pp=(1,))),
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


@pytest.mark.slow
def test_trials_are_listed_whatever_look_ends_their_search() -> None:
    request, plan = KINDS["replicas"](), to_its_end("replicas").plan
    limit = LookLimit(math.inf)
    every = api.serving_trials(request, plan, most=3, has_kept=lambda _: None, stop=limit)
    assert limit.looks.so_far > 1 and every
    for at in (*FIRST_LOOKS, *range(34, limit.looks.so_far, 1 + limit.looks.so_far // 10)):
        found = api.serving_trials(request, plan, most=3, has_kept=lambda _: None, stop=LookLimit(at))
        assert 1 <= len(found) <= 3


@dataclass
class Weighing:
    """A rule that never ends a search, and adds up the work that it is told of."""

    looks: int = 0
    spent: float = 0.0

    def __call__(self) -> bool:
        self.looks += 1
        return False

    def spend(self, work: float) -> None:
        self.spent += work


@pytest.mark.parametrize("kind", ["replicas", "pools", "kinds", "switched", "replicas_answers"])
def test_a_rule_that_bounds_work_is_told_of_the_steps_of_simulations(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the form: a request with prompts of a million tokens takes as many steps as hundreds of others."""
    monkeypatch.setattr(evaluation, "STEPS_OF_A_LOOK", 1)
    rule = Weighing()
    plan = api.solve(KINDS[kind](), stop=rule, progress=ignore_progress)
    assert plan.search.evaluated and rule.looks >= plan.search.evaluated
    # No step holds more than 4096 tokens (`few_batch_limits`), no simulation is of fewer than 300 requests.
    prompt = KINDS[kind]().workload.prompt_tokens
    assert prompt is not None
    assert rule.spent >= 300 * plan.search.evaluated * token_count(prompt).mean / 4096
