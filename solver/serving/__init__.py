"""Serving plans: replicas, pools, workers that switch layouts, or several kinds of workers, that keep P95 promises."""

from __future__ import annotations

from meshwright.solver.serving.planning import plan_serving, predict_serving, simulate_serving
from meshwright.solver.serving.workers.simulation import ServingSimulation

__all__ = ["ServingSimulation", "plan_serving", "predict_serving", "simulate_serving"]
