"""The assumptions of a prediction where a row and its source are silent, in words."""

from __future__ import annotations

from meshwright.app.validation.rows import Run
from meshwright.app.validation.sources import UNKNOWN, UnstatedRecompute

MICRO_BATCH = 1
"""Sequences of a micro-batch in rows that give none: what every published planner starts from."""


def assumptions(run: Run) -> tuple[str, ...]:
    """Each assumption of a prediction, in the order of the request's fields."""
    found = []
    if run.reading == UNKNOWN:
        found.append(UNKNOWN.basis)
    if run.micro_batch is None:
        found.append(f"micro-batches of {MICRO_BATCH} sequence")
    if not run.recompute:
        found.append(
            "no recomputation"
            if run.reading.unstated_recompute is UnstatedRecompute.NEVER
            else "recomputation where it does not fit"
        )
    if not run.zero and run.reading == UNKNOWN:
        found.append("whole training state on every replica")
    return tuple(found)
