"""Each row of README's table "Use it" runs as it is printed, in a folder with the files that it names."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import meshwright
from meshwright.app.cli.commands import assistant_server, one_line, operating, replanning
from tests.acceptance.docs_cases import ROOT
from tests.support.command_line import SHARDING_PROBLEM, Cli
from tests.unit.app.validation.tables import write_table

TRAINING = """
schema: meshwright.request/1
model: {catalog: qwen2.5-0.5b}
cluster: 8xH100
workload: {kind: training, global_batch: 16, seq_len: 1024}
"""
SERVING = """
schema: meshwright.request/1
model: {catalog: qwen2.5-0.5b}
cluster: 8xH100
workload:
  kind: serving
  arrivals: {process: poisson, requests_per_s: 2}
  prompt_tokens: {fixed: 500}
  output_tokens: {fixed: 50}
"""
OF_SERVING = ("simulate",)
"""Commands of serving plans; the request of all others trains."""

WORDS = {"OPERATOR": "layer/down_proj", "NAME": "ours"}
"""What stands for the words in capitals that a reader replaces."""

SERVERS = {"serve": operating, "worker": operating, "mcp": assistant_server, "replan": replanning}
"""Commands that run until they are told to stop, or wait for one that does, and their modules: read as printed here, and run by
tests of their own."""


def commands() -> list[str]:
    """Return what the table says to run, one after the other."""
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("## Use it", 1)[1].split("\n## ", 1)[0]
    rows = [row.split("|")[2] for row in table.splitlines() if row.startswith("|")][2:]
    assert len(rows) > 20
    for row in rows:
        assert "`meshwright" in row, row
    return rows


@pytest.fixture
def folder(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a file of each name that a row takes for one that its reader has."""
    monkeypatch.chdir(cli.folder)
    monkeypatch.setenv("MESHWRIGHT_DATABASE_URL", f"sqlite:///{cli.folder}/rows.db")

    def made(row: str) -> None:
        request = SERVING if any(word in row for word in OF_SERVING) else TRAINING
        Path("request.yaml").write_text(request)
        for name in {"plan.json", "old.json", "new.json"} & set(re.split(r"[\s`]", row)) if "-o plan.json" not in row else ():
            assert cli("plan", "request.yaml", "-o", name) == 0
        if "measured.csv" in row:
            write_table(Path("measured.csv"), {})
        if "problem.json.gz" in row:
            Path("problem.json.gz").write_bytes(gzip.compress(json.dumps(SHARDING_PROBLEM).encode()))
        if "init" in row:
            answers = iter(["qwen3-8b", "8xH100", "serve", "2000", "300", "4", "1s", ""])
            terminal = SimpleNamespace(isatty=lambda: True)
            monkeypatch.setattr(one_line, "typer", SimpleNamespace(prompt=lambda *_, **__: next(answers)))
            monkeypatch.setattr(one_line, "sys", SimpleNamespace(stdin=terminal, stderr=terminal, stdout=sys.stdout))
        if "check plans" in row:
            Path("plans").mkdir()
            Path("plans/ours.plan.yaml").write_text(TRAINING)

    return made


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("row", commands(), ids=lambda row: re.sub(r"\W+", "-", row.split("`")[1])[11:50])
def test_a_row_runs_as_it_is_printed(
    row: str, folder: Callable[[str], None], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(row)
    for command in re.findall(r"`(meshwright[^`]*)`", row):
        if command.startswith("meshwright."):
            planned = eval(command, {"meshwright": meshwright})  # our own README
            assert planned.feasible
            continue
        words = [WORDS.get(word, word) for word in shlex.split(command)][1:]
        if words[0] in SERVERS:
            monkeypatch.setattr(SERVERS[words[0]], f"run_{words[0]}", lambda *_, **__: 0)
        if words[:2] == ["calibrate", "profile"]:
            pytest.importorskip("torch")
        assert cli(*words) == 0, cli.err
