"""The training search: mesh degrees, micro-batches, memory choices, shardings and uneven stages, searched together."""

from meshwright.solver.training.planner import plan_training, predict_training

__all__ = ["plan_training", "predict_training"]
