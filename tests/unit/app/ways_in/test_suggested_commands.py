"""Commands under what a page suggests: typed as they are printed, they ask for the very request that was suggested."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from meshwright.app.base.console import PageConsole
from meshwright.app.base.settings import read_settings
from meshwright.app.cli.commands import planning
from meshwright.app.cli.commands.exits import Output
from meshwright.app.cli.commands.planning import PlanCommand, Store, next_step, request_of, suggested_command
from meshwright.app.cli.pages.plan_page import print_plan
from meshwright.app.requests.digests import keyed_request
from meshwright.app.requests.files import given_request
from meshwright.app.requests.one_line import request_of_line
from meshwright.app.requests.options import OneLine
from meshwright.app.requests.resolve import NoFiles, request_document
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Reason, Suggestion
from meshwright.solver.problem.request import PlanRequest, TrainingRequest
from meshwright.solver.serving.changes import serving_changes, serving_improvements, surer_beside, surer_targets
from meshwright.solver.suggestions import RequestChange, with_targets
from meshwright.solver.training.report.changes import training_changes, training_improvements
from tests.support.command_line import Cli
from tests.support.fakes import infeasible_plan
from tests.unit.solver.training.suggestions import changed

SERVE = "--serve --isl 2k --osl 301 --rate 240/min --ttft-p95 1s --tpot-p95 40ms"
TRAIN = "--train --batch 64 --seq 8k"

LINES = {
    "options of serving": f"llama-3.1-8b --gpus 8xH100 {SERVE}",
    "several nodes with a network": f"llama-3.1-8b --gpus '2 x 8xH100@400Gb' {SERVE} --precision bf16",
    "a part of a node": f"llama-3.1-8b --gpus 2xH100 {SERVE}",
    "a part of a node in words": f"llama-3.1-8b --gpus '5 of 8 H100' {SERVE}",
    "two node groups": f"llama-3.1-8b --gpus '8xH100 + 2x8xA100' {SERVE}",
    "clients": "llama-3.1-8b --gpus 8xH100 --isl 2k --osl 300 --concurrency 64",
    "fields set, which options would not change": f"llama-3.1-8b --gpus 8xH100 {SERVE} "
    "--set 'slo={p95_ttft_ms: 500, p95_tpot_ms: 30}' --set workload.arrivals.requests_per_s=3 --set 'search.tp=[1, 2]'",
    "options of training": f"llama-3.1-8b --gpus 8xH100 {TRAIN} --launcher megatron-lm --set search.risk=0.1",
    "a run with a deadline": f"llama-3.1-8b --gpus 2x8xH100 {TRAIN} --tokens 15B --within 30d",
    "file of serving": "serve.json --frontier --ignore-runs",
    "file of training": "'of training.json' --set slo.max_step_time_s=0.5 --no-store",
}
FILES = {
    "serve.json": {
        "schema": "meshwright.request/1",
        "model": {"catalog": "llama-3.1-8b"},
        "cluster": "2 of 8 H100",
        "workload": {
            "kind": "serving",
            "arrivals": {"process": "poisson", "requests_per_s": 30},
            "prompt_tokens": {"fixed": 2000},
            "output_tokens": {"fixed": 300},
        },
        "slo": {"p95_ttft_ms": 300},
    },
    "of training.json": {
        "schema": "meshwright.request/1",
        "model": {"catalog": "llama-3.1-8b"},
        "cluster": {"catalog": "dgx-h100", "nodes": 2},
        "workload": {"kind": "training", "global_batch": 64, "seq_len": 8192},
        "search": {"schedules": ["1f1b"]},
    },
}


def ladders(request: PlanRequest) -> Iterator[list[RequestChange]]:
    """What the planner tries for the request, whether it has a plan or memory or the load is too much."""
    if isinstance(request, TrainingRequest):
        tight = [Reason("device_memory", 2.0, 1.0, "bytes", ""), Reason("slo.max_step_time_s", 2.0, 1.0, "s", "")]
        found = [training_improvements(request), *(training_changes(request, reason) for reason in tight)]
    else:
        memory, surer = Reason("memory", 2.0, 1.0, "bytes", ""), surer_targets(request)
        found = [serving_improvements(request), serving_changes(request, memory, unsolved), iter([surer])]
        found += [surer_beside(surer[-1])] if surer else []
        found.append(iter([[with_targets(request, {"p95_ttft_ms": 812.5, "p95_tpot_ms": 1e-5})]]))
    for each in found:
        yield from map(list, each)


def unsolved(request: PlanRequest) -> Plan:
    raise AssertionError("no change of a request without memory rests on another's plan")


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_every_command_asks_for_what_was_suggested(line: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cli.folder)
    for name, document in FILES.items():
        cli.write(name, document)
    commands = list[PlanCommand]()
    monkeypatch.setattr(planning, "run_plan", lambda command, settings: commands.append(command) or 0)
    assert cli("plan", *shlex.split(line)) == 0, cli.err
    asked = commands.pop()
    request = request_of(asked, read_settings())
    changes = {tuple(each.set): each for ladder in ladders(request) for each in ladder}  # one of each set of fields
    suggestions = tuple(Suggestion(each.words, each.set, "reached", 1.0, "s") for each in changes.values())
    assert suggestions
    printed = commands_printed(request, asked, suggestions)
    for words, suggestion in zip(read_by_a_shell(printed), suggestions, strict=True):
        assert cli(*words) == 0, (words, cli.err)
        document = json.loads(json.dumps(request_document(request)))
        for path, value in suggestion.set.items():
            changed(document, path, json.loads(value))
        suggested = given_request(document, files=NoFiles())
        typed = request_of(commands.pop(), read_settings())
        assert keyed_request(typed).digest == keyed_request(suggested).digest, (words, suggestion)


def test_options_say_what_they_can_and_set_the_rest() -> None:
    def said(line: OneLine, changes: tuple[str, ...] = (), **values: object) -> str:
        command = PlanCommand(request_of_line(line), line, None, Store.NONE, Output.PAGE, changes=changes)
        request = request_of(command, read_settings())
        changed = {path.replace("__", "."): json.dumps(value) for path, value in values.items()}
        words = suggested_command(command, request, changed, read_settings()).parts
        return " ".join(each for each in words if each not in command.parts)

    serving = OneLine("llama-3.1-8b", "8xH100", isl="2k", osl="300", rate="4", ttft_p95="1s")
    assert said(serving, slo__p95_ttft_ms=1500.5) == "--ttft-p95 1500.5ms"
    assert said(serving, workload__arrivals__requests_per_s=0.779) == "--rate 0.779"
    lengths = {"workload__prompt_tokens__fixed": 1000, "workload__output_tokens__fixed": 150}
    assert said(serving, **lengths) == "--isl 1000 --osl 150"
    assert said(serving, slo__confidence=0.5, cluster__groups__0__nodes=2) == "--gpus 2x8xH100 --set slo.confidence=0.5"
    assert said(serving, workload__kv_dtype="fp8") == "--set workload.kv_dtype=fp8"
    assert said(serving, ("slo.p95_ttft_ms=800",), slo__p95_ttft_ms=900.0) == "--ttft-p95 900ms"
    training = OneLine("llama-3.1-8b", "2x8xH100@400Gb", batch="64", seq="8k")
    assert said(training, workload__seq_len=4096, cluster__groups__0__nodes=3) == "--gpus 3x8xH100@400Gb --seq 4096"
    assert said(training, search__offload_optimizer=[1.0]) == "--set 'search.offload_optimizer=[1.0]'"


def commands_printed(request: PlanRequest, asked: PlanCommand, suggestions: tuple[Suggestion, ...]) -> str:
    """The commands under suggestions on the page of a request without a plan, as they are printed."""
    plan, out = replace(infeasible_plan(request), suggestions=suggestions), io.StringIO()
    ending = next_step(plan, request, asked, read_settings(), is_stored=False)
    print_plan(PageConsole(file=out, width=80), plan, request, ending, full=False)
    assert max(map(len, out.getvalue().splitlines())) <= 80
    return "\n".join(line for line in out.getvalue().splitlines() if line.startswith("    "))


def read_by_a_shell(commands: str) -> list[list[str]]:
    """The words that each command gets."""
    script = f"meshwright() {{ printf '%s\\n' \"$@\" ''; }}\n{commands}"
    told = subprocess.run(["sh", "-euc", script], check=True, capture_output=True, text=True).stdout
    return [block.splitlines() for block in told.removesuffix("\n\n").split("\n\n")]
