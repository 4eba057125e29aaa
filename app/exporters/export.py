"""Export: a plan in the words of a launcher, with what gets lost in translation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshwright.solver.problem.choices import Launcher


@dataclass(frozen=True)
class Export:
    """The launch of a plan.

    launcher, version   the launcher, and its release whose flags these are
    command             what to run on every node, from the directory that holds ``files``
    host_file           name of the file of nodes from which the command, run on the first, starts the others; usually none
    files               text of each file by name
    inexpressible       what of the plan the launcher can't do, and what happens instead
    assumptions         what the command takes for granted: paths, data, hyperparameters that no plan decides
    """

    launcher: Launcher
    version: str
    command: str
    files: Mapping[str, str] = field(default_factory=dict)
    inexpressible: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    host_file: str | None = None
