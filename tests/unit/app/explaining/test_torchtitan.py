"""Runs of torchtitan: an export read back is the plan that it was written from, by its command and by a TOML file."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.app.launching.exporters import export
from meshwright.app.launching.parts.flag import Standing
from meshwright.app.launching.parts.launch_files import NO_FILES, LaunchFiles
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.app.launching.reading import read_command
from meshwright.app.requests.options import OneLine
from meshwright.app.service.explaining.explain import Question, ReadCommand, asked_of, explained
from meshwright.app.service.explaining.explanation import Explanation, Verdict
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.pipeline_plan import pipelines_of
from meshwright.solver.api import solve
from meshwright.solver.control import ignore_progress, never_stop
from tests.support.requests_given import resolved, training
from tests.unit.app.explaining.resolving import resolve

TOML = """
[job]
description = "Llama 3 8B"
[model]
name = "llama3"
flavor = "8B"
[optimizer]
name = "AdamW"
lr = 3e-4
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
{more}
[activation_checkpoint]
mode = "full"
[compile]
enable = false
"""


def stated(text: str, files: LaunchFiles = NO_FILES) -> StatedTraining:
    found = read_command(text, files)
    assert isinstance(found, StatedTraining)
    return found


def explanation(text: str, **options: str) -> Explanation:
    return explained(asked_of(text, OneLine("", **({"gpus": "8xH100"} | options)), resolve))


@pytest.mark.parametrize(
    "search",
    [
        {"tp": [2], "pp": [2], "zero_stages": [2], "recompute": ["none"]},
        {"tp": [1], "pp": [1], "zero_stages": [3], "recompute": ["selective"]},
        {"tp": [1], "pp": [4], "zero_stages": [2], "schedules": ["interleaved-1f1b"], "virtual_stages": [2]},
        {"tp": [2], "pp": [1], "cp": [2], "zero_stages": [3], "recompute": ["full"], "tp_overlap": ["chunked"]},
        {"tp": [1], "pp": [1], "zero_stages": [3], "shard_ranks": [4], "recompute": ["full"]},
    ],
    ids=str,
)
def test_the_command_of_a_plan_predicts_the_plan(search: dict[str, Any]) -> None:
    request = resolved(training(search={"launcher": "torchtitan", **search}))
    plan = solve(request, stop=never_stop, progress=ignore_progress)
    assert plan.feasible
    command = export(plan, request, "torchtitan").command
    read = stated(command)
    assert not [flag.name for flag in read.given if flag.standing is Standing.UNKNOWN]
    found = explained(ReadCommand(command, read, Question({}, ()), request))
    assert found.problems == () and found.plan is not None
    own, again = pipelines_of(plan), pipelines_of(found.plan)
    assert (again.axes, again.microbatch, again.schedule) == (own.axes, own.microbatch, own.schedule)
    assert [stage.blocks for stage in again.stages] == [stage.blocks for stage in own.stages]
    assert again.stages[0].shard_ranks == own.stages[0].shard_ranks
    assert plan.predicted is not None and found.plan.predicted is not None
    assert found.plan.predicted.step_time_s == pytest.approx(plan.predicted.step_time_s)
    assert found.plan.predicted.peak_memory_bytes == pytest.approx(plan.predicted.peak_memory_bytes)


def test_a_configuration_alone_is_a_run_on_all_devices() -> None:
    found = explanation(TOML.format(more=""))
    assert found.verdict is Verdict.RUNS and found.plan is not None
    assert found.request.workload.global_batch == 8  # type: ignore[union-attr]
    axes = pipelines_of(found.plan).axes
    assert (axes.dp, axes.tp, axes.pp) == (8, 1, 1)
    assert pipelines_of(found.plan).stages[0].zero_stage == 3
    assert not [flag.name for flag in found.given if flag.standing is Standing.UNKNOWN]


def test_the_command_wins_over_the_file_that_it_names() -> None:
    files = LaunchFiles({"train_configs/llama3_8b.toml": TOML.format(more="")})
    command = 'NGPU=16 CONFIG_FILE="./train_configs/llama3_8b.toml" ./run_train.sh --training.seq_len 4096'
    found = stated(command, files)
    assert (found.world, found.seq_len, found.microbatch) == (16, 4096, 1)
    with pytest.raises(InvalidInputError, match="was not given"):
        read_command(command)


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        ('pipeline_parallel_degree = 4\npipeline_parallel_schedule = "1F1B"', (8, 9, 8, 7)),
        ('pipeline_parallel_degree = 2\npipeline_parallel_schedule = "Interleaved1F1B"', (8, 9, 8, 7)),
        ("pipeline_parallel_degree = 2\npipeline_parallel_first_stage_less_layers = 0", (17, 15)),
        ('pipeline_parallel_degree = 2\npipeline_parallel_layers_per_stage = 9\npipeline_parallel_schedule = "Interleaved1F1B"',
         (8, 9, 8, 7)),
        ('pipeline_parallel_degree = 2\nmodule_fqns_per_model_part = [["tok_embeddings", "layers.0"], ["layers.1", "norm"]]',
         (1, 1)),
    ],
)  # fmt: skip
def test_layers_of_parts(more: str, parts: tuple[int, ...]) -> None:
    assert stated(TOML.format(more=more)).parts == parts


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("context_parallel_degree = 3", "8 ranks do not divide by tp 1 x pp 1 x cp 3"),
        ("pipeline_parallel_degree = 2\npipeline_parallel_layers_per_stage = 3", "12 parts over 2 ranks"),
        ("pipeline_parallel_degree = 2\npipeline_parallel_microbatch_size = 2", "a local batch of 1 does not divide"),
    ],
)
def test_runs_that_do_not_start(more: str, problem: str) -> None:
    found = explanation(TOML.format(more=more))
    assert found.verdict is Verdict.DOES_NOT_START
    assert any(problem in each for each in found.problems), found.problems


def test_degrees_must_be_those_of_the_ranks() -> None:
    found = explanation(TOML.replace("shard_degree = -1", "shard_degree = 4").format(more=""))
    assert any("the command says 4 replicas" in each for each in found.problems)


@pytest.mark.parametrize(
    "text",
    ["[a]\nb = ", "[a]\nb = " + "[" * 5000, "[a]\n" + ".".join("x" * 999) + " = 1", "{" * 5000, "x: [", "[a]\nx = 1", "{}"],
)
def test_strange_configurations_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        read_command(text)
