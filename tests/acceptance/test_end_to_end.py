"""The whole house at once: real models, the real solver, through the command line and through REST."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from meshwright.app.base.settings import Settings
from meshwright.app.requests.examples import INFEASIBLE_REQUEST, REQUEST_EXAMPLES, SERVING_REQUEST, TRAINING_REQUEST
from meshwright.app.service.sandbox import ChildSolver
from tests.support.command_line import Cli
from tests.support.service import running_service

PATIENCE_S = 300.0
"""Seconds after which a solve of an example hangs, on any machine."""


def planned(client: httpx.Client, request: dict[str, Any]) -> httpx.Response:
    """The answer with the plan. A machine that is busy answers with the job first, which is then waited for."""
    made, end = client.post("/v1/plans", json=request), time.monotonic() + PATIENCE_S
    while made.status_code == 202 and time.monotonic() < end:
        time.sleep(0.2)
        job = client.get(f"/v1/jobs/{made.json()['id']}").json()
        if job["finished_at"] is not None:
            made = client.post("/v1/plans", json=request)
    assert made.status_code in (200, 201), made.text
    return made


@pytest.mark.slow
def test_rest_plans_every_example_and_finds_it_again(settings: Settings) -> None:
    with running_service(settings, ChildSolver()) as client:
        for name, example in REQUEST_EXAMPLES.items():
            made = planned(client, example["value"])
            plan = made.json()
            assert plan["feasible"] == (name != "infeasible")
            assert plan["certificate"]["status"] == ("infeasible" if name == "infeasible" else "optimal")
            assert client.post("/v1/plans", json=example["value"]).content == made.content
        assert len(client.get("/v1/plans").json()["plans"]) == len(REQUEST_EXAMPLES)


def test_command_line_plans_predicts_and_exports(cli: Cli) -> None:
    request, target = cli.write("request.json", TRAINING_REQUEST), str(cli.folder / "plan.json")
    assert cli("plan", request, "-o", target) == 0
    assert "Feasible" in cli.out and "Optimal" in cli.out
    plan = json.loads(Path(target).read_text())
    assert cli("predict", request, "--plan", target, "--json") == 0
    predicted = cli.json()["predicted"]
    assert predicted["step_time_s"] == pytest.approx(plan["predicted"]["step_time_s"], rel=1e-9)
    assert cli("export", target, "--to", "megatron-lm") == 0
    assert f"--tensor-model-parallel-size {plan['axes']['tp']}" in cli.out
    script = cli.out
    assert cli("export", plan["digest"][:19], "--to", "megatron-lm", "-o", str(cli.folder / "launch")) == 0
    assert script.rstrip() == (cli.folder / "launch" / "launch.sh").read_text().rstrip()
    assert cli("export", target, "--to", "vllm") == 2


def test_predict_refuses_a_plan_of_another_request(cli: Cli) -> None:
    request, target = cli.write("request.json", TRAINING_REQUEST), str(cli.folder / "plan.json")
    cli("plan", request, "-o", target)
    other = cli.write("other.json", TRAINING_REQUEST | {"model": {"catalog": "gpt2-xl"}})
    assert cli("predict", other, "--plan", target) == 2
    broken = json.loads(Path(target).read_text())
    broken["stages"][0]["blocks"][0]["count"] += 1
    assert cli("predict", request, "--plan", cli.write("broken.json", broken)) == 2


def test_serving_plans_export_to_vllm(cli: Cli) -> None:
    target = str(cli.folder / "plan.json")
    assert cli("plan", cli.write("request.json", SERVING_REQUEST), "-o", target) == 0
    assert "P95 TTFT" in cli.out
    assert cli("export", target, "--to", "vllm") == 0
    assert "--tensor-parallel-size" in cli.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "launcher", "figure"),
    [
        (TRAINING_REQUEST, "megatron-lm", "energy_per_step_j"),
        (TRAINING_REQUEST, "megatron-lm", "cost_per_million_tokens"),
        (TRAINING_REQUEST, "megatron-lm", "step_time_s"),
        (SERVING_REQUEST, "vllm", "energy_per_token_j"),
        (SERVING_REQUEST, "vllm", "ttft_p95_s"),
    ],
)
def test_plans_whose_figures_are_off_are_exported(cli: Cli, example: dict[str, Any], launcher: str, figure: str) -> None:
    target = str(cli.folder / "plan.json")
    assert cli("plan", cli.write("request.json", example), "-o", target) == 0
    plan = json.loads(Path(target).read_text())
    assert cli("export", target, "--to", launcher) == 0
    expected = cli.out
    plan["predicted"][figure] *= 1.2
    del plan["digest"]
    assert cli("export", cli.write("changed.json", plan), "--to", launcher) == 0
    assert cli.out == expected


@pytest.mark.slow
def test_rest_and_command_line_draw_the_same_chart_where_asked(settings: Settings, cli: Cli) -> None:
    few = SERVING_REQUEST | {"search": {"tp": [1, 2], "pp": [1]}}
    swept = few | {"search": few["search"] | {"frontier": "swept"}}
    with running_service(settings, ChildSolver()) as client:
        answer = client.post("/v1/plans", json=swept).json()
    points = answer["interactivity"]["points"]
    assert len(points) > 2 and points[0]["tokens_per_s_per_device"] > points[-1]["tokens_per_s_per_device"]
    request = cli.write("request.json", few)
    assert cli("plan", request, "--frontier", "--json") == 0
    plan = cli.json()
    assert (plan["digest"], plan["interactivity"]) == (answer["digest"], answer["interactivity"])
    assert cli("plan", request, "--frontier") == 0
    assert "this plan at its load" in cli.out


@pytest.mark.slow
def test_the_answer_no_says_how_far_off(cli: Cli) -> None:
    target = str(cli.folder / "plan.json")
    assert cli("plan", cli.write("request.json", INFEASIBLE_REQUEST | {"search": {"tp": [8]}}), "-o", target) == 1
    assert "tightest constraint" in cli.out
    assert cli("export", target, "--to", "megatron-lm") == 1
