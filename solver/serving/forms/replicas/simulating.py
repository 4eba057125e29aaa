"""Replicas of a plan that was given, simulated."""

from __future__ import annotations

from meshwright.solver.answer.layouts import Replicas
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.serving.workers.simulation import ServingSimulation, described, simulated_replicas


def simulate(request: ServingRequest, layout: Replicas) -> ServingSimulation:
    """Simulate replicas under the request's load; one stands for all that are alike."""
    evaluator, whole, line, alike = simulated_replicas(request, layout)
    return described(evaluator, whole, line, alike=alike)
