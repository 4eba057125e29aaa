"""Runs of DeepSpeed: an export read back is the plan that it was written from, and published configurations are read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshwright.app.launching.exporters import export
from meshwright.app.launching.exporters.launch import script
from meshwright.app.launching.parts.flag import Standing
from meshwright.app.launching.parts.launch_files import LaunchFiles
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.app.launching.reading import read_command
from meshwright.app.requests.options import OneLine
from meshwright.app.service.explaining.explain import Question, ReadCommand, asked_of, explained, with_better
from meshwright.app.service.explaining.explanation import Explanation, Verdict
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.memory.training_state import Tier
from meshwright.solver.answer.pipeline_plan import pipelines_of
from meshwright.solver.api import solve
from meshwright.solver.control import ignore_progress, never_stop
from tests.support.requests_given import resolved, training
from tests.unit.app.explaining.resolving import resolve

LINE = OneLine("llama-3.1-8b", gpus="8xH100", seq="4096")
BY_TRAINER = {
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "overlap_comm": True,
        "stage3_prefetch_bucket_size": "auto",
    },
    "gradient_accumulation_steps": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "steps_per_print": 2000,
}
COMMAND = (
    "torchrun --nproc_per_node=8 run_clm.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2 "
    "--gradient_accumulation_steps 4 --bf16 True --gradient_checkpointing True --deepspeed ds_z3.json --block_size 4096"
)


def stated(text: str, files: dict[str, Any] | None = None) -> StatedTraining:
    found = read_command(text, LaunchFiles({name: json.dumps(config) for name, config in (files or {}).items()}))
    assert isinstance(found, StatedTraining)
    return found


def explanation(config: dict[str, Any]) -> Explanation:
    return explained(asked_of(json.dumps(config), LINE, resolve))


@pytest.mark.parametrize(
    "search",
    [
        {"tp": [1], "pp": [1], "zero_stages": [3], "recompute": ["none"]},
        {"tp": [2], "pp": [1], "zero_stages": [1], "recompute": ["none"]},
        {"tp": [1], "pp": [2], "zero_stages": [1], "recompute": ["full"]},
        {"tp": [1], "pp": [1], "zero_stages": [3], "shard_ranks": [4], "recompute": ["none"]},
        {"tp": [1], "pp": [1], "zero_stages": [2], "recompute": ["none"], "offload_optimizer": [1], "offload_gradients": [1]},
    ],
    ids=str,
)
def test_the_script_of_a_plan_predicts_the_plan(search: dict[str, Any]) -> None:
    work = training()["workload"] | {"seq_len": 1024}
    request = resolved(training(search={"launcher": "deepspeed", **search}, workload=work))
    plan = solve(request, stop=never_stop, progress=ignore_progress)
    assert plan.feasible
    launched = script(export(plan, request, "deepspeed"))
    read = stated(launched)
    assert not [flag.name for flag in read.given if flag.standing is Standing.UNKNOWN]
    found = explained(ReadCommand(launched, read, Question({}, ()), request))
    assert found.problems == () and found.plan is not None
    own, again = pipelines_of(plan), pipelines_of(found.plan)
    assert (again.axes, again.microbatch, again.schedule) == (own.axes, own.microbatch, own.schedule)
    assert again.stages[0].zero_stage == own.stages[0].zero_stage
    assert again.stages[0].offload == own.stages[0].offload
    assert again.stages[0].recompute == own.stages[0].recompute
    if [stage.blocks for stage in again.stages] == [stage.blocks for stage in own.stages]:
        assert plan.predicted is not None and found.plan.predicted is not None
        assert found.plan.predicted.step_time_s == pytest.approx(plan.predicted.step_time_s)
        assert found.plan.predicted.peak_memory_bytes == pytest.approx(plan.predicted.peak_memory_bytes)


def test_what_the_configuration_leaves_is_the_trainers() -> None:
    found = stated(COMMAND, {"ds_z3.json": BY_TRAINER})
    assert (found.world, found.microbatch, found.accumulation, found.zero_stage) == (8, 2, 4, 3)
    assert (found.offload.optimizer, found.offload.optimizer_to, found.seq_len) == (1.0, Tier.HOST, 4096)
    assert found.recompute.value == "full" and found.workload["precision"] == "bf16"
    files = LaunchFiles({"ds_z3.json": json.dumps(BY_TRAINER)})
    asked = asked_of(COMMAND, OneLine("llama-3.1-8b", gpus="8xH100"), resolve, files)
    assert asked.request.workload.global_batch == 64  # type: ignore[union-attr]
    assert not [flag.name for flag in found.given if flag.standing is Standing.UNKNOWN]


@pytest.mark.parametrize(
    "command",
    [
        "deepspeed --num_nodes 2 --num_gpus 4 train.py --deepspeed_config c.json --deepspeed",
        "deepspeed --num_nodes 2 --num_gpus 4 train.py --deepspeed --deepspeed_config=c.json",
        "torchrun --nnodes 2 --nproc-per-node 4 train.py --deepspeed c.json",
    ],
)
def test_ways_to_start(command: str) -> None:
    found = stated(command, {"c.json": {"train_batch_size": 64, "zero_optimization": {"stage": 2}}})
    assert (found.world, found.global_batch, found.zero_stage) == (8, 64, 2)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"train_batch_size": 64}, (8, 1)),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 4}, (2, 4)),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}, (4, 2)),
        ({"train_micro_batch_size_per_gpu": 4}, (4, 1)),
        ({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}, (4, 2)),
    ],
)
def test_two_of_three_sizes_say_the_third(batch: dict[str, int], expected: tuple[int, int]) -> None:
    found = explanation({**batch, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}})
    assert found.plan is not None
    microbatch = pipelines_of(found.plan).microbatch
    assert (microbatch.size, microbatch.count) == expected


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"train_batch_size": 60, "zero_optimization": {"stage": 1}}, "60 does not divide"),
        (
            {"train_batch_size": 64, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
            "offload_param needs",
        ),
        ({"train_batch_size": 64, "zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, "offload_optimizer needs"),
        ({"train_batch_size": 64, "bf16": {"enabled": True}, "fp16": {"enabled": True}}, "both enabled"),
        ({"train_batch_size": 64, "zero_optimization": {"stage": 3}, "pipeline": {"stages": 2}}, "ZeRO-3 does not go"),
    ],
)
def test_configurations_that_do_not_start(config: dict[str, Any], problem: str) -> None:
    found = explanation(config)
    assert found.verdict is Verdict.DOES_NOT_START
    assert any(problem in each for each in found.problems), found.problems


def test_sizes_that_do_not_agree_are_told() -> None:
    sizes = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4}
    found = stated("deepspeed --num_gpus 8 train.py --deepspeed_config c.json", {"c.json": sizes})
    assert found.problems == ("train_batch_size 64 is not 4 sequences x 4 micro-batches x 8 replicas",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(BY_TRAINER), "leaves its micro-batch to the trainer"),
        ("deepspeed train.py --deepspeed", "names no configuration"),
        ("deepspeed train.py --deepspeed_config c.json", "was not given"),
        (json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 4}}), "can't have this value"),
        (json.dumps({"train_batch_size": 8, "optimizer": {"type": "Lion"}}), "no cost model covers this optimizer"),
    ],
)
def test_what_can_not_be_read(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_command(text)


def test_a_better_plan_is_told_with_its_configuration() -> None:
    found = explanation({"train_batch_size": 64, "bf16": {"enabled": True}, "zero_optimization": {"stage": 0}})
    found = with_better(found, lambda asked: solve(asked, stop=never_stop, progress=ignore_progress))
    assert found.better is not None and "cat > ds_config.json" in found.better.command
    told = {each.flag: (each.given, each.better) for each in found.better.differences}
    assert told["--zero_optimization.stage"] == ("0", "3") and not any(flag.startswith("--deepspeed") for flag in told)
