"""Serving plans: replicas, or pools of prefill and decode workers, and batch limits that keep P95 promises under a load."""

from __future__ import annotations

from solver.serving.given_mixture import predict_mixture
from solver.serving.given_pair import predict_pair
from solver.serving.given_switched import predict_switched
from solver.serving.planning import plan_serving
from solver.serving.prediction import predict_serving
from solver.serving.simulating import ServingSimulation, simulate_serving

__all__ = [
    "ServingSimulation",
    "plan_serving",
    "predict_mixture",
    "predict_pair",
    "predict_serving",
    "predict_switched",
    "simulate_serving",
]
