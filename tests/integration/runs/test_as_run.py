"""Logs of another workload than the plan: refused, or stored as runs of the same layout under their own workload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from meshwright.app.base.settings import Settings
from meshwright.app.evidence.logs.matching import as_run
from meshwright.app.evidence.logs.stated import NOTHING_STATED, Stated, exactly
from meshwright.app.requests.digests import keyed_request
from meshwright.app.requests.plan_documents import answer_document, read_plan_document
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.layouts import Uniform
from meshwright.solver.answer.plan import AnsweredRequest
from tests.attacks.planned import planned
from tests.support.command_line import Cli

LINE = (
    " iteration {n:8}/     100 | consumed samples: {samples:12} | elapsed time per iteration (ms): {ms} | global batch size: "
    "{batch:5} | lm loss: 1.1E+01 | number of skipped iterations:   0 |"
)


def log(folder: Path, *, batch: int, seq_len: int, step_time_s: float) -> str:
    """The path of a log of three steps by Megatron-LM on the plan's 16 devices."""
    lines = [f"using world size: 16, data-parallel size: {batch}", f"  seq_length ........................ {seq_len}"]
    lines += [LINE.format(n=n, samples=n * batch, ms=1e3 * step_time_s, batch=batch) for n in (1, 2, 3)]
    path = folder / "train.log"
    path.write_text("\n".join(lines))
    return str(path)


@pytest.fixture
def stored(cli: Cli, client: httpx.Client, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a plan of 64 sequences of 4,096 tokens a step, its database being the service's."""
    monkeypatch.setenv("MESHWRIGHT_DATABASE_URL", settings.database_url)
    return cli.write("plan.json", answer_document(AnsweredRequest(*planned("megatron"))))


def runs(client: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/v1/runs").json()["runs"]
    return found


def test_a_log_of_another_batch_is_refused_and_nothing_is_stored(cli: Cli, client: httpx.Client, stored: str) -> None:
    path = log(cli.folder, batch=128, seq_len=8192, step_time_s=11.0)
    for more in ((), ("--dry-run",)):
        assert cli("observe", stored, "--log", path, *more) == 2
        assert "global batch 128" in cli.err and "global batch 64" in cli.err
        assert "sequence length 8192" in cli.err and "sequence length 4096" in cli.err
        assert "--batch 128 --seq 8192" in cli.err and "--as-run" in cli.err
    assert runs(client) == []


def test_as_run_stores_it_under_a_plan_of_its_own(cli: Cli, client: httpx.Client, stored: str) -> None:
    """With what is predicted of the same layout for what ran: by the plan's own figure, the run would seem twice as slow."""
    answered = read_plan_document(json.loads(Path(stored).read_text()))
    path = log(cli.folder, batch=128, seq_len=8192, step_time_s=11.0)
    assert cli("observe", stored, "--log", path, "--as-run", "--json") == 0, cli.err
    (run,) = runs(client)
    ran = as_run(Stated(global_batch=exactly(128.0), seq_len=exactly(8192.0)), answered)
    assert ran.plan.predicted is not None and answered.plan.predicted is not None
    assert run["plan"] == ran.plan.digest == cli.json()["plan"]
    assert run["predicted"]["step_time_s"] == pytest.approx(ran.plan.predicted.step_time_s)
    assert run["predicted"]["step_time_s"] > 1.5 * (answered.plan.predicted.step_time_s or 0.0)
    assert client.get(f"/v1/plans/{run['plan']}").status_code == 404, "what ran is not the plan that answers its request"
    again = client.get("/v1/runs", params={"plan": keyed_request(answered.request).digest})
    assert again.json()["runs"] == [], "the plan itself has no run"


def test_as_run_of_the_plans_own_log_is_a_run_of_the_plan(cli: Cli, client: httpx.Client, stored: str) -> None:
    path = log(cli.folder, batch=64, seq_len=4096, step_time_s=5.5)
    assert cli("observe", stored, "--log", path) == 0, cli.err
    assert cli("observe", stored, "--log", path, "--as-run") == 0, cli.err
    assert "stored already" in cli.out and len(runs(client)) == 1


def test_as_run_is_of_a_log(cli: Cli, stored: str) -> None:
    assert cli("observe", stored, "--step-time", "5.5", "--as-run") == 2
    assert "--as-run is of a log" in cli.err


def test_what_is_not_compared_is_said(cli: Cli, stored: str) -> None:
    path = cli.folder / "train.log"
    path.write_text("elapsed time per iteration (ms): 5500.0 |")
    assert cli("observe", stored, "--log", str(path), "--dry-run") == 0, cli.err
    assert "not compared: batch, sequence length" in cli.err


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        (Stated(devices=exactly(8.0)), "not of the plan's workload"),
        (Stated(model="Qwen/Qwen3-8B"), "not of the plan's workload"),
        (Stated(global_batch=exactly(128.0), devices=exactly(8.0)), "not of the plan's workload"),
        (Stated(tokens_per_step=exactly(1e5)), "not of the plan's workload"),
        (Stated(global_batch=exactly(1.0)), "can't run this schedule"),
        (Stated(global_batch=exactly(1e15)), "too large"),
        (Stated(seq_len=exactly(1e9)), "too large"),
    ],
)
def test_what_the_layout_can_not_run_is_refused(stated: Stated, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        as_run(stated, AnsweredRequest(*planned("megatron")))


def test_the_batch_changes_the_micro_batches_and_nothing_else_of_the_layout() -> None:
    answered = AnsweredRequest(*planned("megatron"))
    assert as_run(NOTHING_STATED, answered) is answered
    ran = as_run(Stated(global_batch=exactly(128.0)), answered).plan.layout
    planned_so = answered.plan.layout
    assert isinstance(ran, Uniform) and isinstance(planned_so, Uniform)
    assert ran.pipelines.axes == planned_so.pipelines.axes
    assert ran.pipelines.microbatch.count == 2 * planned_so.pipelines.microbatch.count
