"""The checker's own lists of the schedules that launchers run agree with the traits of schedules."""

from __future__ import annotations

import pytest

from meshwright.costmodels.pipeline import TRAITS, PipelineRuntime, Schedule, names_in
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.launchers.table import TRAINERS
from meshwright.solver.verify.launchers import TRAINERS as LIMITS


@pytest.mark.parametrize("launcher", list(TRAINERS))
def test_the_checker_lists_the_schedules_of_a_launcher(launcher: Launcher) -> None:
    assert {Schedule(name) for name in LIMITS[launcher].schedules} == TRAINERS[launcher].schedules


@pytest.mark.parametrize("runtime", list(PipelineRuntime))
def test_a_runtime_has_a_name_of_its_own_for_each_schedule(runtime: PipelineRuntime) -> None:
    names = list(names_in(runtime).values())
    assert names
    assert len(set(names)) == len(names)


def test_a_schedule_names_a_runtime_once() -> None:
    for traits in TRAITS.values():
        runtimes = [runtime for runtime, _ in traits.run_by]
        assert len(set(runtimes)) == len(runtimes)
