"""Trials: an order of plans that differ, each exportable; those that have run are left out of the next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.app.base.settings import Settings
from meshwright.app.base.solving import solve_here, trials_here
from meshwright.app.requests.resolve import NoFiles, resolve_request
from meshwright.app.service.trials import layout_digest, under_digests
from meshwright.costmodels.errors import PlanFileError
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.serving.promise import evaluation
from meshwright.solver.serving.promise import evaluation as one_layout
from meshwright.solver.serving.workers import simulation
from meshwright.solver.training.planner import plan_training
from meshwright.solver.training.report.trials import Trial
from tests.support.command_line import Cli
from tests.support.requests_given import serving, training

ASKED = training(search={"cp": [1], "schedules": ["1f1b"], "recompute": ["none", "full"]})
NARROW = {"tp": [1, 2, 4, 8], "cp": [1], "schedules": ["1f1b"]}


@pytest.fixture(scope="module")
def found() -> tuple[TrainingRequest, tuple[Trial, ...]]:
    request = resolve_request(ASKED | {"search": NARROW}, files=NoFiles())
    assert isinstance(request, TrainingRequest)
    return request, under_digests(trials_here(request, solve_here(request), most=8))


@pytest.mark.slow
def test_trials_differ_and_regret_falls(found: tuple[TrainingRequest, tuple[Trial, ...]]) -> None:
    request, trials = found
    assert 4 <= len(trials) <= 8
    assert len({trial.plan.digest for trial in trials}) == len(trials)
    regrets = [trial.expected_regret for trial in trials]
    assert regrets == sorted(regrets, reverse=True) and regrets[-1] < regrets[0] / 2
    assert trials[0].chance_out_of_memory <= request.search.risk
    assert all(trial.tells and trial.plan.feasible for trial in trials)
    again = under_digests(trials_here(request, solve_here(request), most=3))
    assert [trial.plan.digest for trial in again] == [trial.plan.digest for trial in trials[:3]]


def test_an_infeasible_plan_has_no_trials() -> None:
    request = resolve_request(training(model={"catalog": "llama-3.1-405b"}, search=NARROW), files=NoFiles())
    assert isinstance(request, TrainingRequest)
    infeasible = plan_training(request, stop=never_stop, progress=ignore_progress)
    with pytest.raises(PlanFileError, match="nothing to try"):
        trials_here(request, infeasible, most=3)


@pytest.mark.slow
def test_trials_are_written_run_and_left_out(cli: Cli, settings: Settings, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("MESHWRIGHT_DATABASE_URL", settings.database_url)
    request, folder = cli.write("request.json", ASKED), tmp_path / "trials"
    assert cli("plan", request, "--trials", "2", "-o", str(folder)) == 0, cli.err
    listed = json.loads((folder / "trials.json").read_text())["trials"]
    assert len(listed) == 2
    for number, trial in enumerate(listed, start=1):
        place = folder / f"trial-{number}"
        plan = json.loads((place / "plan.json").read_text())
        assert plan["digest"] == trial["plan"]
        assert "megatron" in (place / "launch.sh").read_text() or "torchrun" in (place / "launch.sh").read_text()
        assert cli("export", str(place / "plan.json"), "--to", "megatron-lm") == 0, cli.err
    first = folder / "trial-1" / "plan.json"
    assert cli("observe", str(first), "--out-of-memory") == 0, cli.err
    assert cli("plan", request, "--next", "--json") == 0, cli.err
    (following,) = cli.json()["trials"]
    assert following["plan"] != listed[0]["plan"]
    assert following["peak_memory_bytes"] < listed[0]["peak_memory_bytes"]
    # The other framework's trials know nothing of that run.
    assert cli("plan", request, "--trials", "1", "--json", "--no-store") == 0, cli.err
    assert cli.json()["trials"][0]["plan"] == listed[0]["plan"]


@pytest.mark.slow
def test_layouts_are_told_by_what_they_decide(found: tuple[TrainingRequest, tuple[Trial, ...]]) -> None:
    from dataclasses import replace

    plan = found[1][0].plan
    assert plan.predicted is not None
    assert layout_digest(replace(plan, predicted=replace(plan.predicted, step_time_s=1.0), notes=())) == plan.digest


@pytest.mark.parametrize("options", [("--trials", "0"), ("--trials", "9"), ("--trials", "2", "-o", "-")])
def test_trials_that_can_not_be_asked_for(cli: Cli, options: tuple[str, ...]) -> None:
    assert cli("plan", cli.write("request.json", ASKED), *options, "--no-store") == 2


def test_the_next_serving_trial_follows_what_the_first_told(
    cli: Cli, settings: Settings, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("MESHWRIGHT_DATABASE_URL", settings.database_url)
    for module in (evaluation, simulation):
        monkeypatch.setattr(module, "REQUESTS", 1500)
    monkeypatch.setattr(evaluation, "SCREENING_REQUESTS", 300)
    monkeypatch.setattr(one_layout, "STEP_TOKENS", (1024, 4096))
    monkeypatch.setattr(one_layout, "SEQUENCES", (4, 16, 64))
    load = {"arrivals": {"process": "poisson", "requests_per_s": 14.0}, "output_tokens": {"fixed": 100}}
    asked = serving(workload=serving()["workload"] | load, slo={"p95_ttft_ms": 400, "p95_tpot_ms": 14}, search={"tp": [1]})
    request, folder = cli.write("request.json", asked), tmp_path / "trials"
    assert cli("plan", request, "--trials", "3", "-o", str(folder)) == 0, cli.err
    assert "chance to keep the targets" in cli.err + cli.out
    listed = json.loads((folder / "trials.json").read_text())["trials"]
    assert len(listed) >= 2 and len({trial["plan"] for trial in listed}) == len(listed)
    first = folder / "trial-1"
    assert "vllm" in (first / "launch.sh").read_text()
    document = json.loads((first / "plan.json").read_text())
    said = document["predicted"]
    assert said["chance_tpot_missed"] <= 0.1 and document["devices"] == listed[0]["devices"]
    figures = ("--ttft-p95", f"{said['ttft_p95_s']}s", "--tpot-p95", f"{said['tpot_p95_s']}s")
    assert cli("observe", str(first / "plan.json"), *figures) == 0, cli.err
    assert cli("plan", request, "--next", "--json") == 0, cli.err
    (following,) = cli.json()["trials"]
    assert following["plan"] != listed[0]["plan"]
    # What kept its targets leaves only plans of fewer devices worth a trial.
    assert following["devices"] < listed[0]["devices"]
