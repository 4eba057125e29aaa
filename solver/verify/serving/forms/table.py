"""The rules of every form of a serving plan, by its layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from meshwright.solver.answer.layouts import Kinds, Pools, Replicas, ServingLayout, Switched
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.verify.serving.forms import kinds, pools, replicas, switched
from meshwright.solver.verify.violation import Violation

Rules = Callable[[Plan, Any, ServingRequest], Iterator[Violation]]
"""A function that yields what a plan of one form breaks, from its layout."""


RULES: Mapping[type[ServingLayout], Rules] = MappingProxyType(
    {
        Replicas: replicas.violations,
        Pools: pools.violations,
        Kinds: kinds.violations,
        Switched: switched.violations,
    }
)


def workers_violations(plan: Plan, request: ServingRequest) -> Iterator[Violation]:
    """Rules of the workers of a serving plan, by their form."""
    rules = RULES.get(type(plan.layout))  # type: ignore[arg-type]
    assert rules is not None, "answer_violations asks for the layout of a feasible serving plan"
    return rules(plan, plan.layout, request)
