"""The constants of ``plan``, ``simulate`` and ``validate`` are the same ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshwright.app.evidence.serving.deployment import Deployment, deployment
from meshwright.app.evidence.serving.recipes import EngineName
from meshwright.app.evidence.serving.replay import PROFILES, default_constants, simulated_engine, with_host_time
from meshwright.costmodels.queueing.step_times import StepTimes
from meshwright.costmodels.serving.engine_profile import ENGINE_PROFILES, ServingEngine
from meshwright.costmodels.serving.latency_law import latency_law
from tests.unit.app.validation.serving.tables import point


def deployed(folder: Path, engine: EngineName) -> Deployment:
    return deployment(point(folder, engine=engine.value).run)


def test_every_profile_is_one_that_validate_starts_from() -> None:
    assert {profile.engine: profile for profile in PROFILES.values()} == dict(ENGINE_PROFILES)
    assert set(ENGINE_PROFILES) == set(ServingEngine)


@pytest.mark.parametrize("engine", EngineName)
def test_constants_are_those_of_the_profile_and_of_the_law_of_latencies(engine: EngineName) -> None:
    profile, constants = PROFILES[engine], default_constants(engine)
    assert (constants.step_s, constants.operator_s) == (profile.step_s, profile.prompt_operator_s)
    laws = [latency_law(profile.engine, pools=pools, devices=()) for pools in (False, True)]
    assert {law.ttft.outside_s for law in laws} == {constants.request_s} == {profile.outside_s}


@pytest.mark.parametrize("engine", EngineName)
def test_steps_of_validate_are_those_that_plan_simulates(tmp_path: Path, engine: EngineName) -> None:
    built = simulated_engine(deployed(tmp_path, engine))
    own, used = built.simulated_times, with_host_time(built, default_constants(engine), PROFILES[engine])
    assert isinstance(own, StepTimes) and isinstance(used, StepTimes)
    assert np.array_equal(own.tokens_s, used.tokens_s)
    assert np.array_equal(own.least_prompt_s, used.least_prompt_s)
    assert built.turnaround_s == PROFILES[engine].turnaround_s > 0.0
