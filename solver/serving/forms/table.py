"""Every form of a serving plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from meshwright.solver.answer.layouts import Kinds, Pools, Replicas, ServingLayout, Switched
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.forms.kinds.given import predict as predict_kinds
from meshwright.solver.serving.forms.kinds.rules import refuse as refuse_kinds
from meshwright.solver.serving.forms.kinds.simulating import simulate as simulate_kinds
from meshwright.solver.serving.forms.pools.given import predict as predict_pools
from meshwright.solver.serving.forms.pools.rules import refuse as refuse_pools
from meshwright.solver.serving.forms.pools.simulating import simulate as simulate_pools
from meshwright.solver.serving.forms.replicas.given import predict as predict_replicas
from meshwright.solver.serving.forms.replicas.rules import refuse as refuse_replicas
from meshwright.solver.serving.forms.replicas.simulating import simulate as simulate_replicas
from meshwright.solver.serving.forms.switched.given import predict as predict_switched
from meshwright.solver.serving.forms.switched.rules import refuse as refuse_switched
from meshwright.solver.serving.forms.switched.simulating import simulate as simulate_switched
from meshwright.solver.serving.workers.simulation import ServingSimulation

OwnLayout = TypeVar("OwnLayout", bound=ServingLayout)


@dataclass(frozen=True, slots=True)
class Form(Generic[OwnLayout]):
    """A form of a serving plan, and what is done with it.

    layout     the type of its part of a plan
    refuse     raises for a request that asks for the form beside what it is not planned for
    predict    the plan with every figure of a given layout predicted anew
    simulate   what requests see of a given layout
    """

    name: str
    layout: type[OwnLayout]
    refuse: Callable[[ServingRequest], None]
    predict: Callable[[ServingRequest, Plan, OwnLayout], Plan]
    simulate: Callable[[ServingRequest, OwnLayout], ServingSimulation]


FORMS: tuple[Form[Any], ...] = (
    Form("replicas", Replicas, refuse_replicas, predict_replicas, simulate_replicas),
    Form("pools", Pools, refuse_pools, predict_pools, simulate_pools),
    Form("kinds", Kinds, refuse_kinds, predict_kinds, simulate_kinds),
    Form("switched", Switched, refuse_switched, predict_switched, simulate_switched),
)
"""Forms in the order in which they are searched."""
