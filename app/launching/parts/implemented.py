"""The implementation that a request states, and what of it a launcher can't be told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from meshwright.costmodels.model.implementation import Implementation
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.table import TRAINERS
from meshwright.solver.problem.request import TrainingWorkload

MEASURED = frozenset({"context_bytes", "memory"})
"""The fields that say what was measured of a process, which nothing turns on or off."""


def stated_by(workload: TrainingWorkload, launcher: Launcher) -> Implementation:
    """The implementation that the plan was priced with: the stated one, else the launcher's own."""
    own = TRAINERS[launcher].implementation
    return own if workload.implementation is None else workload.implementation.over(own)


def not_as_stated(workload: TrainingWorkload, launcher: Launcher, *, said: Iterable[str], instead: str) -> tuple[str, ...]:
    """Each field in which the launcher runs otherwise than stated, in words.

    said      fields that the launcher's command says, or says that it can't
    instead   what becomes of the others
    """
    own, stated = TRAINERS[launcher].implementation, stated_by(workload, launcher)
    lost = []
    for name in (field.name for field in fields(Implementation)):
        # The kernels of the loss are those of the layers unless stated.
        own_value, value = (getattr(each, "loss" if name == "stated_loss" else name) for each in (own, stated))
        if value != own_value and name not in MEASURED and name not in said:
            lost.append(f"implementation.{name}: {_word(value)} is planned; {instead} {_word(own_value)}")
    return tuple(lost)


def _word(value: Any) -> str:
    """A field's value in words; of a list, which only projections with an adapter are, none stands for all."""
    if isinstance(value, tuple):
        return ", ".join(each.value for each in value) or "each product"
    return str(value.value)
