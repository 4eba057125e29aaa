"""The statements of a launch command, in records of ours: its launcher, model and flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.app.launch_flags.flag import GivenFlag
from meshwright.app.launch_flags.serving import LaunchFlags
from meshwright.solver.problem.choices import Launcher


@dataclass(frozen=True, slots=True)
class StatedServer:
    """The command of a server.

    model         as the command names it; None where it names none
    environment   variables that are set in front of the command
    notes         what was taken for granted in reading it
    """

    launcher: Launcher
    flags: LaunchFlags
    model: str | None
    given: tuple[GivenFlag, ...]
    environment: Mapping[str, str]
    notes: tuple[str, ...] = ()
