"""Runtimes of pipelines have one name for each schedule that they run."""

from __future__ import annotations

import pytest

from meshwright.costmodels.pipeline import TRAITS, PipelineRuntime, names_in


@pytest.mark.parametrize("runtime", list(PipelineRuntime))
def test_a_runtime_has_a_name_of_its_own_for_each_schedule(runtime: PipelineRuntime) -> None:
    names = list(names_in(runtime).values())
    assert names
    assert len(set(names)) == len(names)


def test_a_schedule_names_a_runtime_once() -> None:
    for traits in TRAITS.values():
        runtimes = [runtime for runtime, _ in traits.run_by]
        assert len(set(runtimes)) == len(runtimes)
