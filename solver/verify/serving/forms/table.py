"""The rules of every form of a serving plan, found by the name of its layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, get_args

from meshwright.solver.answer.layouts import ServingLayout
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.verify.violation import Violation

Rules = Callable[[Plan, Any, ServingRequest], Iterator[Violation]]
"""A function that yields what a plan of one form breaks, from its layout."""


def _rules_of(layout: type[ServingLayout]) -> Rules:
    rules: Rules = import_module(f"{__package__}.{layout.__name__.lower()}").violations
    return rules


RULES: Mapping[type[ServingLayout], Rules] = MappingProxyType({layout: _rules_of(layout) for layout in get_args(ServingLayout)})


def workers_violations(plan: Plan, request: ServingRequest) -> Iterator[Violation]:
    """Rules of the workers of a serving plan, by their form."""
    rules = RULES.get(type(plan.layout))  # type: ignore[arg-type]
    assert rules is not None, "answer_violations asks for the layout of a feasible serving plan"
    return rules(plan, plan.layout, request)
