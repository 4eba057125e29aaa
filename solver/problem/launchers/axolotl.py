"""Axolotl, which sets up FSDP2 and DeepSpeed by keys of its own."""

from __future__ import annotations

from dataclasses import replace

from meshwright.solver.problem.launchers.hugging_face import OVER_ACCELERATE

LAUNCHER = replace(OVER_ACCELERATE, adapters=True, masks_documents=True)
