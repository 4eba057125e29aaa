"""The layout of a serving plan, which a test knows the form of."""

from __future__ import annotations

from meshwright.solver.answer.layouts import Kinds, Pools, Replicas, Switched
from meshwright.solver.answer.plan import Plan


def replicas_of(plan: Plan) -> Replicas:
    """Return the replicas of a plan of equal ones."""
    assert isinstance(plan.layout, Replicas)
    return plan.layout


def pools_of(plan: Plan) -> Pools:
    """Return the prefill pool and the decode pool of a plan."""
    assert isinstance(plan.layout, Pools)
    return plan.layout


def switched_of(plan: Plan) -> Switched:
    """Return the two layouts of workers that switch."""
    assert isinstance(plan.layout, Switched)
    return plan.layout


def kinds_of(plan: Plan) -> Kinds:
    """Return the several kinds of workers of a plan."""
    assert isinstance(plan.layout, Kinds)
    return plan.layout
