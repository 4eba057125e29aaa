"""Serving plans: replicas x tp x pp and batch limits that keep P95 promises at an arrival rate."""

from __future__ import annotations

from solver.serving.planning import plan_serving
from solver.serving.prediction import predict_serving
from solver.serving.simulating import ServingSimulation, simulate_serving

__all__ = ["ServingSimulation", "plan_serving", "predict_serving", "simulate_serving"]
