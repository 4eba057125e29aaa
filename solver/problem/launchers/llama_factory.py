"""LLaMA-Factory: DeepSpeed by a key of its own, FSDP2 by Accelerate."""

from __future__ import annotations

from dataclasses import replace

from meshwright.solver.problem.launchers.hugging_face import OVER_ACCELERATE

LAUNCHER = replace(OVER_ACCELERATE, adapters=True)
