"""Axolotl, which sets up FSDP2 and DeepSpeed by keys of its own."""

from __future__ import annotations

from meshwright.solver.problem.launchers.hugging_face import OVER_ACCELERATE

LAUNCHER = OVER_ACCELERATE
