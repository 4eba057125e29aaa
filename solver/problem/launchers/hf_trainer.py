"""Hugging Face's Trainer by its own arguments, which have no groups of ranks that shard (parallelism_config takes no text)."""

from __future__ import annotations

from dataclasses import replace

from meshwright.solver.problem.launchers.hugging_face import OVER_ACCELERATE

LAUNCHER = replace(OVER_ACCELERATE, zero_within_groups=frozenset())
