"""Ten situations of a new user, each walked from the first command to the last: real commands, the real planner, 80 columns."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright.app.base.errors import EXIT_BAD_INPUT, EXIT_GOOD, EXIT_NO
from tests.acceptance.docs_cases import ROOT
from tests.support.command_line import Cli

pytestmark = pytest.mark.slow

COLUMNS = 80
MOST_STEPS = 3
"""Commands that are followed from one answer: what is asked leads to a plan, a plan to its launch."""

SECONDS_A_DAY = 86_400

GOES_ON = {
    EXIT_GOOD: (
        "Next: meshwright",
        "start it:",
        "plan it with:",
        "Plan again to use it",
        "Better",
        "No better plan",
        "Passed:",
        "Commit it",
    ),
    EXIT_NO: ("What would help", "what would help:", "not tried", "fix:"),
    EXIT_BAD_INPUT: ("what to do:", "fix:"),
}
"""What an answer has by its exit code: the next step, or the verdict that ends a walk."""


class Walk:
    """A new user in an empty folder: each command is typed as it stands, and its answer read for what to do next."""

    def __init__(self, cli: Cli):
        self.cli = cli

    def __call__(self, line: str, *, code: int = EXIT_GOOD) -> str:
        """Run a command and what its ``Next:`` names; return what it printed. Its exit code is ``code``, theirs 0."""
        said, steps = self._step(line, code), 0
        while (command := next_command(self.cli.out)) is not None:
            steps += 1
            assert steps <= MOST_STEPS, f"{line}: no end after {MOST_STEPS} steps"
            self._step(command, EXIT_GOOD)
        return said

    def _step(self, line: str, code: int) -> str:
        program, *words = shlex.split(line)
        assert program == "meshwright"
        assert self.cli(*words) == code, (line, self.cli.out, self.cli.err)
        said = self.cli.out + self.cli.err
        if "--print-request" in words or self.cli.out.startswith("#!/bin/sh"):
            return said  # a document and a script are what was asked for
        assert any(words in " ".join(said.split()) for words in GOES_ON[code]), f"{line}: no next step in {said}"
        assert max(len(each.rstrip()) for each in self.cli.out.splitlines() or [""]) <= COLUMNS, self.cli.out
        return said


def next_command(said: str) -> str | None:
    """The command that a page ends with; wrapped lines are whole again."""
    _, found, command = said.rpartition("Next: meshwright ")
    return f"meshwright {command}".replace("\n", "") if found else None


@pytest.fixture
def walk(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Walk:
    monkeypatch.chdir(cli.folder)
    return Walk(cli)


def commands_of(path: str, start: str) -> Iterator[str]:
    """Commands of a page, each as the line has it after ``start``."""
    for found in re.finditer(rf"{start}(meshwright .*)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE):
        yield found[1]


def test_first_commands_of_the_readme(walk: Walk) -> None:
    first, second, *_ = commands_of("README.md", r"\.venv/bin/")
    assert "Feasible: " in walk(first.replace("examples/", f"{ROOT}/examples/"))
    assert "Feasible: " in walk(second)


def test_tutorial_from_the_first_step_to_the_last(walk: Walk) -> None:
    for line in commands_of("docs/tutorial.md", r"^\$ "):
        walk(line)
    assert "Starts and fits" in walk("meshwright explain --gpus 8xH100 launch")
    walk("meshwright export serve.json --to vllm -o served")
    asked = "--isl 2000 --osl 300 --rate 4 --ttft-p95 1s --tpot-p95 40ms"
    assert "Starts and fits" in walk(f"meshwright explain --gpus 8xH100 {asked} served")


def test_adapters_on_four_cards_of_a_desk(walk: Walk) -> None:
    walk("meshwright plan Qwen/Qwen3-8B --lora 16 --gpus '4x RTX 4090' --batch 64 --seq 2048 -o lora.json")
    walk("meshwright export lora.json --to trl -o launch")
    explained = walk("meshwright explain --gpus '4x RTX 4090' launch")
    assert "Starts and fits" in explained and "No better plan" in explained


def test_two_nodes_on_a_slow_network(walk: Walk) -> None:
    walk("meshwright plan llama-2-7b --gpus 2x8xA100@100Gb --train --batch 256 --seq 4096 -o plan.json")
    for launcher in ("megatron-lm", "torchtitan"):
        walk(f"meshwright export plan.json --to {launcher} -o {launcher}")
        assert "Starts and fits" in walk(f"meshwright explain --gpus 2x8xA100@100Gb {launcher}")


def test_long_prompts_and_a_rate_that_is_too_high(walk: Walk) -> None:
    asked = (
        "meshwright plan meta-llama/Llama-3.1-70B --gpus {gpus} --isl 8k --osl 500 --rate {rate} --ttft-p95 5s --tpot-p95 60ms"
    )
    walk(asked.format(gpus="4xH100", rate="0.2") + " -o plan.json")
    walk("meshwright export plan.json --to vllm")
    refused = walk(asked.format(gpus="4xH100", rate="1") + " -o none.json", code=EXIT_NO)
    suggested = re.findall(r"^    (meshwright plan (?:.*\\\n)*.*)$", refused, re.MULTILINE)
    # A machine on which the search takes its whole minute says so, and what to raise.
    assert suggested or "raise search.time_limit_s" in " ".join(refused.split()), refused
    for command in suggested[:2]:
        assert "Feasible: " in walk(command.replace("\\\n", ""))
    again = walk("meshwright export none.json --to vllm", code=EXIT_NO)
    assert "what would help" in again and ("instead of" in again or "raise search.time_limit_s" in again)


def test_experts_on_two_nodes_by_two_engines(walk: Walk) -> None:
    asked = "meshwright plan deepseek-ai/DeepSeek-V3 --gpus '16 H200' --isl 4k --osl 1k --rate 2"
    walk(f"{asked} -o vllm.json")
    walk("meshwright export vllm.json --to vllm -o vllm")
    assert "--launcher sglang" in walk("meshwright export vllm.json --to sglang", code=EXIT_BAD_INPUT)
    walk(f"{asked} --launcher sglang -o sglang.json")
    walk("meshwright export sglang.json --to sglang -o sglang")


def test_which_machine_serves_a_rate(walk: Walk) -> None:
    table = walk("meshwright plan gpt-oss-120b --gpus 8xH100,8xB200 --serve --isl 1k --osl 1k --rate 20")
    assert "Best: 8xB200" in table and "8xH100 " in table


def test_a_run_of_tokens_in_days(walk: Walk, cli: Cli) -> None:
    run = "meshwright plan llama-2-13b --gpus {gpus} --tokens 1T --within {days}d --objective cost"
    walk(run.format(gpus="128xH100", days=30), code=EXIT_BAD_INPUT)
    said = re.search(r"as in: --train (--batch \d+ --seq \d+)", cli.err)
    assert said, "the work is missing, and what to add is said"
    # 40 CPU s, which a machine with other work must not end early.
    run += " --batch 1024 --seq 4096 --set search.time_limit_s=300"
    assert "costs" in walk(run.format(gpus="128xH100", days=30))
    refused = walk(run.format(gpus="8xH100", days=30), code=EXIT_NO)
    slower = re.search(r"- slo\.min_tokens_per_s: (\d+)", refused)
    assert slower or "instead of" in refused or "raise search.time_limit_s" in " ".join(refused.split()), refused
    if slower:
        days = math.ceil(1e12 / int(slower[1]) / SECONDS_A_DAY)
        assert "Feasible: " in walk(run.format(gpus="8xH100", days=days))


def test_a_node_is_lost(walk: Walk) -> None:
    asked = "meshwright plan meta-llama/Llama-3.1-8B --train --batch 256 --seq 4096 --gpus"
    walk(f"{asked} 4x8xH100 -o four.json")
    walk(f"{asked} 3x8xH100 -o three.json")
    moved = walk("meshwright diff four.json three.json --lost 24-31")
    assert "come from a checkpoint" in moved and "Next: meshwright export three.json" in moved
    assert "PUT /v1/clusters/" in walk("meshwright replan --cluster pool", code=EXIT_BAD_INPUT)


def test_a_change_that_makes_a_plan_worse_fails_the_build(walk: Walk) -> None:
    request = Path("plans/small.plan.yaml")
    request.parent.mkdir()
    walk("meshwright init qwen3-8b --gpus 8xH100 --train --batch 64 --seq 4096 -o plans/small.plan.yaml")
    assert "--update" in walk("meshwright check plans", code=EXIT_BAD_INPUT)
    walk("meshwright check plans --update")
    assert "Passed: 1 same" in walk("meshwright check plans")
    request.write_text(request.read_text().replace("8xH100", "4xH100"))
    worse = walk("meshwright check plans", code=EXIT_NO)
    assert "worse" in worse and "cause: " in worse and "If every change is meant" in worse
    walk("meshwright check plans --update")
    assert "Passed: 1 same" in walk("meshwright check plans")
