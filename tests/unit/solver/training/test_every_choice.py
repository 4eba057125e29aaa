"""Every listed choice of the ledger is kept by the search, the checker and predictions of a given plan."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.answer.arrangement import chosen, usual
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choice import TRAINING, Launched, Said
from meshwright.solver.problem.choices import Recompute, Space
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import LEDGER, Search
from meshwright.solver.training.planner import plan_training, predict_training
from meshwright.solver.verify.check import check
from tests.support.opened_choices import opened
from tests.unit.solver.training.instances import memory_request, sliced_request
from tests.unit.solver.training.layered import layered_request

LISTED = [
    name
    for name, entry in LEDGER.items()
    if entry.choice.said is Said.LISTED and entry.choice.forms & TRAINING and entry.choice.place is not None
]

NARROW: dict[str, Any] = {
    "tp": (1,),
    "cp": (1,),
    "pp": (1, 2),
    "recompute": (Recompute.NONE,),
    "microbatch": (1,),
    "schedules": (Schedule.ONE_F_ONE_B,),
}
"""Restrictions that leave few plans."""

BESIDE: dict[str, dict[str, Any]] = {
    "ulysses": {"cp": (2,)},
    "cp_keys": {"cp": (2,)},
    "etp": {"tp": (2,), "ep": (2,)},
    "recompute_layers": {"recompute": (Recompute.NONE, Recompute.FULL), "pp": (1,), "zero_stages": (0, 1)},
    "recompute_modules": {"recompute": (Recompute.FINE_GRAINED,)},
    "shard_ranks": {"zero_stages": (1, 3), "dp": (4, 8), "pp": (1,)},
    "tp_overlap": {"tp": (2,)},
    "virtual_stages": {"schedules": (Schedule.INTERLEAVED,), "pp": (2,)},
    "token_slices": {"schedules": (), "pp": (2,)},
    "schedules": {"pp": (2,)},
    "offload_optimizer_to": {"offload_optimizer": (1.0,)},
    "offload_weights_to": {"offload_weights": (1.0,)},
}
"""Values beside which a choice says something."""

DRAWS = {"recompute_layers": (layered_request,)}
"""Requests of a choice that depends on memory between two figures."""


@pytest.mark.slow_beyond(6)
@pytest.mark.parametrize("name", LISTED)
def test_a_value_that_a_request_asks_for_is_planned_checked_and_predicted(name: str) -> None:
    value, request, plan = next(unusual_plans(name))
    assert check(plan, request) == ()
    predicted = predict_training(request, plan)
    assert values_in(predicted, name) == values_in(plan, name)
    others = (other for other in opened(name, group_names=[]) if other != value)
    assert any(check(plan, asking_for(other, name, request)) for other in others)


def unusual_plans(name: str) -> Iterator[tuple[Any, TrainingRequest, Plan]]:
    """Requests that allow one value of a choice alone, an unusual one, and the plans that have it."""
    place, of_no_launcher = LEDGER[name].choice.place, LEDGER[name].choice.launched is Launched.BY_NONE
    assert place is not None
    unusual = [value for value in opened(name, group_names=[]) if value != usual(place)]
    for seed, draw in itertools.product(range(60), DRAWS.get(name, (memory_request, sliced_request))):
        drawn = draw(seed)
        if of_no_launcher and drawn.search.space is not Space.FREE:
            continue
        for value in unusual:
            request = asking_for(value, name, drawn)
            try:
                plan = plan_training(request, stop=never_stop, progress=ignore_progress)
            except WorkloadError:
                continue
            if plan.feasible and value in values_in(plan, name):
                yield value, request, plan


def asking_for(value: Any, name: str, drawn: TrainingRequest) -> TrainingRequest:
    asked = {**NARROW, **BESIDE.get(name, {}), name: (value,)}
    return replace(
        drawn, search=Search(space=drawn.search.space, launcher=drawn.search.launcher, risk=drawn.search.risk, **asked)
    )


def values_in(plan: Plan, name: str) -> tuple[Any, ...]:
    place = LEDGER[name].choice.place
    assert plan.layout is not None and place is not None
    return chosen(plan.layout, place)
