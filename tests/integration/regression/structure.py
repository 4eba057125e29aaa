"""Shared by the tests of structure and others: PLACED, OTHERWISE, planned, kind_of, otherwise."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from meshwright.app.base.solving import solve_here
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.solver.answer.arrangement import chosen
from meshwright.solver.answer.document import plan_of
from meshwright.solver.answer.layouts import PlanSlice
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import LayerSpan, Stage
from meshwright.solver.control import ignore_progress
from meshwright.solver.problem.choice import TRAINING, Part
from meshwright.solver.problem.search import LEDGER
from tests.support.flat_plans import flat, with_fields
from tests.support.opened_choices import opened
from tests.support.requests_given import resolved, serving, training

PLACED = {name: entry for name, entry in LEDGER.items() if entry.choice.place and entry.choice.place.part is not Part.FORM}


OTHERWISE: dict[str, Any] = {
    "token_slices": (PlanSlice(1024, 1.0, 2.0), PlanSlice(3072, 3.0, 6.0)),
    "group_order": ("second", "first"),
    "idle_groups": {"first": 1},
    "optimizers": Optimizer.MUON,
}
"""Values of choices whose place in a plan is not of the type that a request lists."""


@cache
def planned(kind: str) -> Plan:
    """A plan by the planner, of equal pipelines of two stages, which have a schedule, or of equal replicas."""
    search = training().get("search", {}) | {"pp": [2]}
    request = resolved(training(search=search) if kind == "training" else serving())
    plan = solve_here(request, ignore_progress)
    assert plan.feasible
    return plan


def kind_of(name: str) -> str:
    return "training" if LEDGER[name].choice.forms & TRAINING else "serving"


def otherwise(plan: Plan, name: str) -> Plan:
    """The plan with another value of a choice, where the choice stands."""
    place = LEDGER[name].choice.place
    assert place is not None and plan.layout is not None
    if name == "virtual_stages":
        return with_fields(plan, stages=tuple(_in_two_chunks(stage) for stage in flat(plan).stages))
    now = chosen(plan.layout, place)
    values = [OTHERWISE[name]] if name in OTHERWISE else opened(name, group_names=["first"])
    value = next(value for value in values if value not in now)
    match place.part:
        case Part.AXES:
            return with_fields(plan, axes=_with(flat(plan).axes, place.path, value))
        case Part.STAGES:
            return with_fields(plan, stages=tuple(_with(stage, place.path, value) for stage in flat(plan).stages))
        case _:
            return plan_of(_with(flat(plan), place.path, value))


def _with(record: Any, path: str, value: Any) -> Any:
    first, _, rest = path.partition(".")
    return replace(record, **{first: _with(getattr(record, first), rest, value) if rest else value})


def _in_two_chunks(stage: Stage) -> Stage:
    (first, *others) = stage.blocks
    return replace(stage, chunk_layers=(1, 1), blocks=(*others, LayerSpan(first.block, first.first, first.count)))
