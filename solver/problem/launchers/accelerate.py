"""Hugging Face Accelerate: a script of the user's own."""

from __future__ import annotations

from meshwright.solver.problem.launchers.hugging_face import OVER_ACCELERATE

LAUNCHER = OVER_ACCELERATE
