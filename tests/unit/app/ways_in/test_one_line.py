"""Requests in one line: each of `lines.yaml` becomes its request, or is answered with the right hint."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
import yaml

import meshwright
from meshwright.app.base.documents import parse_document
from meshwright.app.cli.options import LineOptions
from meshwright.app.requests.files import FilesBeside, given_request
from meshwright.app.requests.model_words import CONFIG, cached_config, is_model_id
from meshwright.app.requests.one_line import request_of_line, request_yaml
from meshwright.app.requests.options import OPTIONS, OneLine, Task
from meshwright.app.requests.resolve import request_document
from meshwright.app.service.asking import NewExplanation
from meshwright.costmodels.errors import InvalidInputError
from tests.support.command_line import Cli
from tests.support.requests_given import TINY_CONFIG, tiny_graph

LINES = yaml.safe_load((Path(__file__).parent / "lines.yaml").read_text(encoding="utf-8"))
COMMIT = "0123abc"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """The command line in a folder with a checkpoint, a graph, and a Hugging Face cache that holds own/tiny."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "checkpoint" / CONFIG).write_text(json.dumps(TINY_CONFIG))
    (tmp_path / "graph.json").write_text(json.dumps(tiny_graph() | {"schema": "meshwright.model-graph/1"}))
    keep(tmp_path / "hub", "own/tiny")
    return Cli(monkeypatch, capsys, tmp_path)


def keep(hub: Path, model_id: str) -> None:
    """Put a config into a cache as ``hf download`` does."""
    model = hub / f"models--{model_id.replace('/', '--')}"
    (model / "snapshots" / COMMIT).mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    (model / "snapshots" / COMMIT / CONFIG).write_text(json.dumps(TINY_CONFIG))


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("line", LINES, ids=lambda line: line["say"])
def test_a_line_is_understood_or_answered(cli: Cli, line: dict[str, Any]) -> None:
    words = shlex.split(line["say"])
    if "hint" in line:
        assert cli("plan", *words) == 2
        assert line["hint"] in cli.err and "Traceback" not in cli.err
        return
    assert cli("plan", *words, "--print-request") == 0, cli.err
    printed = parse_document(cli.out.encode(), what="request")
    assert printed == {"schema": "meshwright.request/1", **line["is"]}
    assert given_request(printed, files=FilesBeside(cli.folder))


def test_there_are_forty_lines() -> None:
    assert len(LINES) >= 40


def test_a_line_is_planned_as_its_request(cli: Cli) -> None:
    words = ("checkpoint", "--gpus", "2xH100", "--batch", "8", "--seq", "128")
    assert cli("plan", *words, "--no-store", "--json") == 0, cli.err
    from_line = cli.json()
    del from_line["search"]["seconds"]
    assert cli("plan", *words, "--print-request") == 0
    (cli.folder / "request.yaml").write_text(cli.out)
    assert cli("plan", "request.yaml", "--no-store", "--json") == 0, cli.err
    from_file = cli.json()
    del from_file["search"]["seconds"]
    assert from_file == from_line


def test_the_page_says_the_line_again_as_words_of_a_shell(cli: Cli) -> None:
    words = ["checkpoint", "--gpus", "5 of 8 H100", "--batch", "10", "--seq", "128"]
    assert cli("plan", *words, "--no-store") == 0, cli.err
    (again,) = re.findall(r"meshwright plan .*?-o plan\.json", " ".join(cli.out.split()))
    assert shlex.split(again)[2:-2] == [*words, "--no-store"]


def test_init_writes_the_request_that_plan_prints(cli: Cli) -> None:
    words = ("qwen3-8b", "--gpus", "5 of 8 H100", "--batch", "8", "--seq", "128")
    assert cli("plan", *words, "--print-request") == 0
    printed = cli.out
    assert cli("init", *words) == 0 and cli.out == printed
    assert cli("init", *words, "-o", "request.yaml") == 0
    assert cli.out == "" and (cli.folder / "request.yaml").read_text() == printed
    assert all(f"\n{field}:" in printed and "\n# " in printed for field in ("model", "cluster", "workload"))


def test_init_without_a_terminal_asks_nothing(cli: Cli) -> None:
    assert cli("init") == 2
    assert "the model is missing" in cli.err


def test_init_asks_for_what_is_missing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers come in the order of the questions; an empty one leaves a target out."""
    from meshwright.app.cli.commands import one_line

    answers = iter(["qwen3-8b", "8xH100", "serve", "2000", "300", "4", "1s", ""])
    asked: list[str] = []

    def prompt(question: str, **_: object) -> str:
        asked.append(question)
        return next(answers)

    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(one_line, "typer", SimpleNamespace(prompt=prompt))
    monkeypatch.setattr(one_line, "sys", SimpleNamespace(stdin=terminal, stderr=terminal, stdout=sys.stdout))
    line = one_line.completed(LineOptions({}).of_model(""))
    assert (line.model, line.gpus, line.task, line.rate, line.ttft_p95) == ("qwen3-8b", "8xH100", "serve", "4", "1s")
    assert line.tpot_p95 is None and len(asked) == 8


@pytest.mark.parametrize("answered", [(), ("qwen3-8b",), ("qwen3-8b", "8xH100"), ("qwen3-8b", "8xH100", "serve", "2000")])
def test_the_end_of_input_at_any_question_ends_init(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, answered: tuple[str, ...]
) -> None:
    """Every prompt raises typer.Abort at Ctrl-D and Ctrl-C: whatever command asks, it was interrupted."""
    from meshwright.app.cli.commands import one_line

    answers = iter(answered)

    def prompt(*_: object, **__: object) -> str:
        found = next(answers, None)
        if found is None:
            raise typer.Abort
        return found

    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(one_line, "typer", SimpleNamespace(prompt=prompt))
    monkeypatch.setattr(one_line, "sys", SimpleNamespace(stdin=terminal, stderr=terminal, stdout=sys.stdout))
    assert cli("init") == 130
    assert "interrupted" in cli.err and "internal error" not in cli.err


def test_a_budget_out_of_reach_is_missed_in_money_and_advice_changes_it(cli: Cli) -> None:
    line = ("plan", "qwen3-0.6b", "--gpus", "8xH100", "--batch", "64", "--seq", "2k", "--tokens", "3B", "--budget", "3")
    assert cli(*line, "--no-store") == 1
    assert " USD, allowed 3.00\n" in cli.out or " USD, allowed 3\n" in cli.out
    assert "USD per million tokens" in cli.out
    assert "takes" not in cli.out
    advised = re.search(r"--tokens 3B --budget (\S+)", " ".join(cli.out.replace("\\\n", " ").split()))
    assert advised is not None and float(advised[1]) > 3
    assert "--set slo.max_cost" not in cli.out
    assert cli(*line[:-1], advised[1], "--no-store") == 0


def test_every_part_of_a_line_has_an_option_and_comes_from_it() -> None:
    parts = {each.name for each in fields(OneLine)} - {"model", "task", "assume_decoder"}
    assert set(OPTIONS) == parts
    line = LineOptions({part: f"its {part}" for part in parts}, train=True, assume_decoder=True).of_model("a model")
    assert line == OneLine("a model", task=Task.TRAIN, assume_decoder=True, **{part: f"its {part}" for part in parts})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("budget", "tokens", "found"),
    [
        ("500k", "1T", 0.5),
        ("1.2M", "100B", 12.0),
        ("60", None, "--budget needs the tokens"),
        ("0", "1T", "a run costs"),
    ],
)
def test_a_budget_is_what_a_million_tokens_may_cost(budget: str, tokens: str | None, found: float | str) -> None:
    line = OneLine("llama-3.1-8b", gpus="8xH100", batch="64", seq="8k", tokens=tokens, budget=budget)
    if isinstance(found, str):
        with pytest.raises(InvalidInputError, match=found):
            request_of_line(line)
        return
    assert request_of_line(line)["slo"] == {"max_cost_per_million_tokens": found}


def test_programs_and_rest_ask_the_options_of_a_line() -> None:
    """They name the same options, but for devices and targets over REST, whose names say what they are."""
    of_rest = {each.name for each in fields(NewExplanation)} - {"command", "files", "model", "config", "measured"}
    assert {"cluster": "gpus", "p95_ttft_ms": "ttft_p95", "p95_tpot_ms": "tpot_p95"}.keys() <= of_rest
    asked = set(inspect.signature(meshwright.explain).parameters) & set(OPTIONS)
    assert len(of_rest) == len(asked) and of_rest - {"cluster", "p95_ttft_ms", "p95_tpot_ms"} <= asked
    said_by_commands = {"launcher", "host_memory", "lora", "qlora"}
    assert set(OPTIONS) - asked == said_by_commands | {"tokens", "within", "budget"}, (
        "the length of a run is asked of plans alone"
    )


def test_the_hub_cache_is_read_at_its_main_branch(cli: Cli) -> None:
    found = cached_config("own/tiny")
    assert found is not None and found.parent.name == COMMIT
    assert cached_config("own/other") is None
    request = given_request(
        {
            "schema": "meshwright.request/1",
            "model": {"huggingface": "own/tiny"},
            "cluster": "8xH100",
            "workload": {"kind": "training", "global_batch": 8, "seq_len": 128},
        },
        files=FilesBeside(cli.folder),
    )
    assert request.model.name == "own/tiny"


@pytest.mark.parametrize("name", ["../../etc", "a/../b", "/etc/passwd", "a/b/c", "a\n/b", "~/x", "a/b.json", "x", "a/b;rm", ""])
def test_what_is_no_hub_id_leads_to_no_cache(name: str) -> None:
    assert not is_model_id(name)


@pytest.mark.parametrize(
    "name", ["a\x1b[2J", "x; touch PWNED #", "::set-output name=x::y", "a\u202eb", "1e3", "null", "a: b", "#x"]
)
def test_strange_names_are_only_shown_and_read_back(cli: Cli, name: str) -> None:
    document = {"schema": "meshwright.request/1", "model": {"huggingface": name}}
    assert parse_document(request_yaml(document).encode(), what="request") == document
    assert cli("plan", name, "--gpus", name, "--batch", "8", "--seq", "128") == 2
    assert "\x1b" not in cli.err and "\u202e" not in cli.err and not cli.err.startswith("::")


def test_downloading_needs_the_clients_package(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert cli("plan", "nobody/nothing", "--gpus", "8xH100", "--batch", "8", "--seq", "128", "--download") == 2
    assert "pip install huggingface_hub" in cli.err
    assert cli("plan", "own/tiny", "--gpus", "8xH100", "--batch", "8", "--seq", "128", "--download", "--print-request") == 0


def test_a_line_asks_for_what_a_file_asks_for(cli: Cli) -> None:
    """The catalogue's model under its Hub id differs in its name alone."""
    trained = {
        "schema": "meshwright.request/1",
        "cluster": "8xH100",
        "workload": {"kind": "training", "global_batch": 8, "seq_len": 128},
    }
    by_id, by_name = (
        request_document(given_request(trained | {"model": model}, files=FilesBeside(cli.folder)))
        for model in ({"huggingface": "Qwen/Qwen3-8B"}, {"catalog": "qwen3-8b", "name": "Qwen/Qwen3-8B"})
    )
    assert by_id == by_name
