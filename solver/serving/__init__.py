"""Serving plans: replicas, or pools of prefill and decode workers, and batch limits that keep P95 promises under a load."""

from __future__ import annotations

from meshwright.solver.serving.forms.kinds.given import predict_mixture
from meshwright.solver.serving.forms.pools.given import predict_pair
from meshwright.solver.serving.forms.replicas.prediction import predict_serving
from meshwright.solver.serving.forms.switched.given import predict_switched
from meshwright.solver.serving.planning import plan_serving
from meshwright.solver.serving.simulating import ServingSimulation, simulate_serving

__all__ = [
    "ServingSimulation",
    "plan_serving",
    "predict_mixture",
    "predict_pair",
    "predict_serving",
    "predict_switched",
    "simulate_serving",
]
