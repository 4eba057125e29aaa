"""TRL: its SFT trainer, started by Accelerate."""

from __future__ import annotations

from dataclasses import replace

from meshwright.solver.problem.launchers.hugging_face import OVER_ACCELERATE

LAUNCHER = replace(OVER_ACCELERATE, adapters=True, masks_documents=True)
