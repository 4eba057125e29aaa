"""Names and logs of measured runs: words of a stranger stay words, through REST, ``observe`` and what a database keeps."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from meshwright.app.base.settings import Settings
from meshwright.app.evidence.logs.table import run_of_log
from meshwright.app.evidence.logs.writers import LogWriter
from meshwright.app.requests.plan_documents import answer_document
from meshwright.app.store.runs import MAX_WORDS, RunOutcome
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest
from tests.attacks.names import PIECES, names
from tests.attacks.planned import TRAINED, planned, renamed
from tests.attacks.runner import check_lines
from tests.support.command_line import Cli

DIGEST = "sha256:" + "0" * 64

NUMBERS = ("7123.4", "0", "0.0", "9" * 400, "1e999", "-1", "nan", "Infinity", "0." + "0" * 400 + "1", "７", "1_000", "")
LINES = (
    "elapsed time per iteration (ms): {} |",
    "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1 | max reserved: {}",
    "step: 10  loss:  7.1  memory: {}GiB(60.11%)  tps: {}  tflops: 1",
    "step: 10  loss:  7.1  memory: 47.59GiB(60.11%)  tps: {}  tflops: 1",
    "CurrSamplesPerSec={}, MemAllocated=6.01GB, MaxMemAllocated={}GB",
    "steps: 10 loss: 7.1 iter time (s): {} samples/sec: 25.9",
    "{{'train_samples_per_second': {}, 'train_steps_per_second': {}, 'train_mem_gpu_peaked_delta': {}}}",
    "train_mem_gpu_peaked_delta = {}MB",
    '{{"output_throughput": {}, "p95_ttft_ms": {}}}',
    "torch.OutOfMemoryError: {}",
)
"""Lines of every writer that is read, with a number to be put in."""

log_lines = st.builds(lambda line, n: line.format(n, n, n), st.sampled_from(LINES), st.sampled_from(NUMBERS))
logs = st.lists(log_lines | names, min_size=1, max_size=6).map("\n".join)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example("elapsed time per iteration (ms): " + "9" * 400)
@example("memory (MB) | max reserved: " + "9" * 400)
@example("step: 1 memory: " + "9" * 400 + "GiB(1%) tps: " + "9" * 400)
@example("CurrSamplesPerSec=1e999, MaxMemAllocated=" + "9" * 400 + "GB")
@example("'train_steps_per_second': 0." + "0" * 330 + "1, 'train_mem_gpu_peaked_delta': " + "9" * 400)
@example('{"output_throughput": 1e308, "p95_ttft_ms": -1}')
@given(text=logs)
def test_a_log_is_figures_or_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hostile.log"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    answered = AnsweredRequest(*planned("megatron"))
    for writer in (None, *LogWriter):
        try:
            run = run_of_log(path, answered, plan=DIGEST, writer=writer)
        except InvalidInputError as error:
            check_lines(str(error).replace(str(path), "hostile.log"))
        else:
            assert all(0.0 < value < math.inf for value in run.measured().values())
            assert bool(run.measured()) is (run.outcome is RunOutcome.COMPLETED)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example("x\nStored.")
@example("\x1b[2J")
@given(name=names)
def test_observe_only_shows_names(cli: Cli, name: str) -> None:
    """A hostile plan, label and path change no line of the page, and what JSON says is what was given."""
    plan, request = renamed(planned("megatron"), name)
    path = cli.write("plan.json", answer_document(AnsweredRequest(plan, request)))
    words = _argument(name)[:MAX_WORDS]
    told = cli("observe", path, "--step-time", "7.1", "--dry-run", "--label", words, "--software", words)
    check_lines(cli.out + cli.err)
    assert told in (0, 2)
    if told == 0:
        assert cli("observe", path, "--step-time", "7.1", "--dry-run", "--label", words, "--software", words, "--json") == 0
        assert (cli.json().get("label", ""), cli.json().get("software", "")) == (words, words)
    assert cli("observe", path, "--log", _argument(name) or "-x") == 2
    check_lines(cli.out + cli.err)


@pytest.mark.slow
def test_rest_gives_words_back_as_they_were(client: httpx.Client) -> None:
    digest = _stored(client)
    kept: dict[str, str] = {}
    for number, piece in enumerate(PIECES):
        words = f"{number}{piece}"
        body = json.dumps({"plan": digest, "step_time_s": 1.0 + number, "label": words, "software": piece})
        answer = client.post("/v1/runs", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (201, 400, 422), answer.text
        _one_document(answer)
        if answer.status_code == 201:
            assert answer.headers["location"].isprintable()
            shown = _one_document(client.get(answer.headers["location"]))
            assert (shown["label"], shown["software"]) == (words, piece)
            kept[shown["id"]] = words
    page = _one_document(client.get("/v1/runs", params={"limit": 200}))
    assert {run["id"]: run["label"] for run in page["runs"]} == kept
    assert len(kept) > len(PIECES) / 2
    for number, piece in enumerate(PIECES):
        filtered = client.get("/v1/runs", params={"model": _sendable(f"{number}{piece}")})
        assert filtered.status_code == 422 or _one_document(filtered)["runs"] == []


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("words", ["a\nb", 'say "x"; DROP TABLE runs; --', "'; touch PWNED #", "模型", "[red]x[/red]"])
def test_a_stored_run_is_shown_by_every_command(
    cli: Cli, client: httpx.Client, settings: Settings, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """The calibration of a hostile run is listed as lines of words, and plans still come."""
    monkeypatch.setenv("MESHWRIGHT_DATABASE_URL", settings.database_url)
    plan = client.get(f"/v1/plans/{_stored(client)}").json()
    path = cli.write("plan.json", plan)
    stored = cli("observe", path, "--step-time", "7.1", "--peak-memory", "60GiB", "--label", words)
    check_lines(cli.out + cli.err)
    runs = client.get("/v1/runs").json()["runs"]
    assert [run["label"] for run in runs] == ([words] if stored == 0 else [])
    for command in (("calibrate", "list"), ("plan", cli.write("request.json", TRAINED), "--fresh")):
        assert cli(*command) == 0, cli.err
        check_lines(cli.out + cli.err)


def _stored(client: httpx.Client) -> str:
    answer = client.post("/v1/plans", json=TRAINED, headers={"prefer": "wait=60"})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["digest"])


def _one_document(answer: httpx.Response) -> dict[str, Any]:
    """The JSON object of an answer, which no hidden character of a name gets into unescaped."""
    document = json.loads(answer.text)
    assert isinstance(document, dict)
    assert not [character for character in answer.text if ord(character) < 0x20]
    return document


def _argument(name: str) -> str:
    """The name as a process may be given it: no null character, no half of a pair."""
    return name.replace("\0", "").encode("utf-8", "replace").decode("utf-8").lstrip("-")


def _sendable(name: str) -> str:
    return name.encode("utf-8", "replace").decode("utf-8")
