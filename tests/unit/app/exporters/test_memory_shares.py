"""Shares of a device's memory that commands of engines carry."""

from __future__ import annotations

import pytest

from meshwright.app.base.solving import solve_here
from meshwright.app.launching.exporters import export
from meshwright.app.launching.exporters.launch import commands
from meshwright.app.launching.parts.serving import LEAST_SHARE, share_in_hundredths
from meshwright.app.launching.parts.stated import StatedServer
from meshwright.app.launching.reading import read_command
from meshwright.costmodels.errors import ExportError
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.table import SERVERS
from tests.support.requests_given import resolved
from tests.support.small_requests import served


@pytest.mark.parametrize(("share", "written"), [(0.0, 0.01), (0.004, 0.01), (0.899, 0.89), (1.2, 1.0)])
def test_a_share_is_rounded_down_but_not_to_nothing(share: float, written: float) -> None:
    assert share_in_hundredths(share) == written


@pytest.mark.parametrize("launcher", SERVERS)
def test_a_plan_that_fills_little_has_a_share_that_engines_start_with(launcher: Launcher) -> None:
    asked = {
        "model": "states",
        "arrivals": {"process": "poisson", "requests_per_s": 3.0},
        "prompt_tokens": {"fixed": 200},
        "output_tokens": {"fixed": 20},
        "objective": "devices",
        "slo": {},
    }
    request = resolved(served(asked, tp=[1], launcher=launcher.value))
    plan = solve_here(request)
    try:
        command = commands(export(plan, request, launcher.value))
    except ExportError:
        # This engine does not run the model.
        return
    read = read_command(command)
    assert isinstance(read, StatedServer)
    assert read.flags.memory_share == LEAST_SHARE
