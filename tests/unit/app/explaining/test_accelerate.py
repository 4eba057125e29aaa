"""Runs of Accelerate: an export read back is the plan that it was written from, and files as its dialog writes are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from meshwright.app.launching.exporters import export
from meshwright.app.launching.exporters.launch import script
from meshwright.app.launching.parts.flag import Standing
from meshwright.app.launching.parts.launch_files import LaunchFiles
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.app.launching.reading import read_command
from meshwright.app.requests.options import OneLine
from meshwright.app.service.explaining.explain import Question, ReadCommand, asked_of, explained, with_better
from meshwright.app.service.explaining.explanation import Verdict
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.memory.training_state import Tier
from meshwright.solver.answer.pipeline_plan import pipelines_of
from meshwright.solver.api import solve
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Launcher
from tests.support.requests_given import resolved, training
from tests.unit.app.explaining.resolving import resolve

LINE = OneLine("llama-3.1-8b", gpus="2x8xH100", seq="4096", batch="64")
DIALOG: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "downcast_bf16": "no",
    "enable_cpu_affinity": False,
    "machine_rank": 0,
    "main_training_function": "main",
    "mixed_precision": "bf16",
    "num_machines": 2,
    "num_processes": 16,
    "rdzv_backend": "static",
    "same_network": True,
    "tpu_env": [],
    "tpu_use_cluster": False,
    "tpu_use_sudo": False,
    "use_cpu": False,
}
"""The keys that the dialog of ``accelerate config`` always writes."""
FSDP_1 = {
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_backward_prefetch": "BACKWARD_PRE",
    "fsdp_forward_prefetch": True,
    "fsdp_offload_params": False,
    "fsdp_sharding_strategy": "FULL_SHARD",
    "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    "fsdp_sync_module_states": True,
    "fsdp_use_orig_params": True,
}
FSDP_2 = {"fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_activation_checkpointing": False}
SCRIPT = "accelerate launch --config_file a.yaml train.py --per_device_train_batch_size 2 --gradient_accumulation_steps 2"


def stated(text: str, **files: str) -> StatedTraining:
    found = read_command(text, LaunchFiles({name.replace("_", "."): text for name, text in files.items()}))
    assert isinstance(found, StatedTraining) and found.launcher is Launcher.ACCELERATE
    assert not [flag.name for flag in found.given if flag.standing is Standing.UNKNOWN]
    return found


def configured(**more: Any) -> StatedTraining:
    return stated(yaml.safe_dump(DIALOG | more))


@pytest.mark.parametrize(
    "search",
    [
        {"zero_stages": [3], "recompute": ["full"]},
        {"zero_stages": [2], "recompute": ["none"]},
        {"zero_stages": [3], "shard_ranks": [4], "recompute": ["none"]},
        {"zero_stages": [1], "recompute": ["none"]},
        {"zero_stages": [2], "recompute": ["none"], "offload_optimizer": [1], "offload_gradients": [1]},
    ],
    ids=str,
)
def test_the_script_of_a_plan_predicts_the_plan(search: dict[str, Any]) -> None:
    work = training()["workload"] | {"seq_len": 1024}
    model = {"catalog": "llama-3.2-3b"}
    request = resolved(training(search={"launcher": "accelerate", **search}, workload=work, model=model))
    plan = solve(request, stop=never_stop, progress=ignore_progress)
    assert plan.feasible
    own = pipelines_of(plan)
    # The script says its micro-batch, which no file of Accelerate's does.
    sizes = f"--per_device_train_batch_size {own.microbatch.size} --gradient_accumulation_steps {own.microbatch.count}"
    launched = script(export(plan, request, "accelerate"))
    if own.stages[0].recompute.value == "full":
        sizes += " --gradient_checkpointing"
    read = stated(f"{launched} \\\n    {sizes}")
    found = explained(ReadCommand(launched, read, Question({}, ()), request))
    assert found.problems == () and found.plan is not None
    again = pipelines_of(found.plan)
    assert (again.axes, again.microbatch) == (own.axes, own.microbatch)
    assert (again.stages[0].zero_stage, again.stages[0].shard_ranks) == (own.stages[0].zero_stage, own.stages[0].shard_ranks)
    assert (again.stages[0].offload, again.stages[0].recompute) == (own.stages[0].offload, own.stages[0].recompute)
    assert plan.predicted is not None and found.plan.predicted is not None
    assert found.plan.predicted.step_time_s == pytest.approx(plan.predicted.step_time_s)
    assert found.plan.predicted.peak_memory_bytes == pytest.approx(plan.predicted.peak_memory_bytes)


@pytest.mark.parametrize(
    ("more", "zero", "ranks"),
    [
        ({"distributed_type": "MULTI_GPU"}, 0, None),
        ({"distributed_type": "FSDP", "fsdp_config": FSDP_1}, 3, None),
        ({"distributed_type": "FSDP", "fsdp_config": FSDP_1 | {"fsdp_sharding_strategy": "SHARD_GRAD_OP"}}, 2, None),
        ({"distributed_type": "FSDP", "fsdp_config": FSDP_1 | {"fsdp_sharding_strategy": 2}}, 2, None),
        ({"distributed_type": "FSDP", "fsdp_config": FSDP_1 | {"fsdp_sharding_strategy": "NO_SHARD"}}, 0, None),
        # A hybrid strategy shards over the devices of a node.
        ({"distributed_type": "FSDP", "fsdp_config": FSDP_1 | {"fsdp_sharding_strategy": "HYBRID_SHARD"}}, 3, 8),
        ({"distributed_type": "FSDP", "fsdp_config": FSDP_2}, 3, None),
        ({"distributed_type": "FSDP", "fsdp_config": FSDP_2 | {"fsdp_reshard_after_forward": False}}, 2, None),
        ({"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero3_init_flag": False}}, 2, None),
        ({"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3, "gradient_clipping": 1.0}}, 3, None),
    ],
    ids=str,
)
def test_what_shards_is_read_of_the_file(more: dict[str, Any], zero: int, ranks: int | None) -> None:
    found = configured(**more)
    assert (found.world, found.zero_stage, found.shard_ranks) == (16, zero, ranks)
    assert found.workload["precision"] == "bf16"


def test_a_mesh_is_read_of_the_file() -> None:
    mesh = {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 4, "parallelism_config_cp_size": 2}
    found = configured(distributed_type="FSDP", fsdp_config=FSDP_2, parallelism_config=mesh)
    assert (found.data_parallel, found.shard_ranks, found.cp, found.ulysses, found.problems) == (8, 8, 2, 1, ())


@pytest.mark.parametrize(
    ("mesh", "fsdp", "problem"),
    [
        ({"dp_shard_size": 8}, FSDP_1, "fsdp_version 2"),
        ({"cp_size": 2, "sp_size": 2}, FSDP_2, "both above 1"),
        ({"dp_replicate_size": 2, "tp_size": 2}, FSDP_2, "dp_shard_size above 1"),
        ({"dp_replicate_size": 4, "dp_shard_size": 2}, FSDP_2, "the command says 8 replicas"),
    ],
)
def test_meshes_that_do_not_start(mesh: dict[str, int], fsdp: dict[str, Any], problem: str) -> None:
    parallel = {f"parallelism_config_{name}": size for name, size in mesh.items()}
    config = DIALOG | {"distributed_type": "FSDP", "fsdp_config": fsdp, "parallelism_config": parallel}
    found = explained(asked_of(yaml.safe_dump(config), LINE, resolve))
    assert found.verdict is Verdict.DOES_NOT_START
    assert any(problem in each for each in found.problems), found.problems


def test_options_hold_over_the_file_and_the_script_says_the_sizes() -> None:
    config = yaml.safe_dump(DIALOG | {"distributed_type": "FSDP", "fsdp_config": FSDP_2})
    command = SCRIPT.replace("train.py", "--num_processes=8 --num_machines 1 --mixed_precision fp16 train.py")
    found = stated(command, a_yaml=config)
    assert (found.world, found.workload["precision"], found.microbatch, found.accumulation) == (8, "fp16", 2, 2)
    asked = asked_of(command, OneLine("llama-3.1-8b", gpus="8xH100", seq="4096"), resolve, LaunchFiles({"a.yaml": config}))
    assert asked.request.workload.global_batch == 32  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "command",
    [
        "accelerate launch --num_processes 8 --use_fsdp --fsdp_version 2 train.py --num_processes 3",
        "accelerate launch --use_fsdp --fsdp-version=2 --num-processes=8 -m trl.scripts.sft --num_processes 3",
        "python -m accelerate.commands.launch --num_processes 8 --use_fsdp --fsdp_version 2 --newer_option 4 train.py",
    ],
)
def test_options_end_where_the_script_begins(command: str) -> None:
    found = read_command(command)
    assert isinstance(found, StatedTraining)
    assert (found.world, found.zero_stage) == (8, 3)


def test_deepspeeds_own_file_is_read() -> None:
    own = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "bf16": {"enabled": True}}
    keys = {"deepspeed_config_file": "ds.json", "deepspeed_multinode_launcher": "standard", "zero3_init_flag": True}
    config = {name: value for name, value in DIALOG.items() if name != "mixed_precision"}
    files = {"a_yaml": yaml.safe_dump(config | {"distributed_type": "DEEPSPEED", "deepspeed_config": keys})}
    found = stated(SCRIPT, **files, ds_json=json.dumps(own))
    assert (found.zero_stage, found.offload.optimizer, found.offload.optimizer_to) == (3, 1.0, Tier.HOST)
    assert (found.microbatch, found.accumulation, found.world) == (2, 2, 16)
    with pytest.raises(InvalidInputError, match=r"ds\.json"):
        stated(SCRIPT, **files)


def test_state_on_the_host_is_all_of_it() -> None:
    found = configured(distributed_type="FSDP", fsdp_config=FSDP_2 | {"fsdp_offload_params": True})
    assert (found.offload.optimizer, found.offload.weights, found.offload.gradients) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ({"distributed_type": "MEGATRON_LM"}, "MEGATRON_LM"),
        ({"distributed_type": "TPU"}, "TPU"),
        ({"distributed_type": "FSDP", "fsdp_config": FSDP_1 | {"fsdp_sharding_strategy": "SOME"}}, "SOME"),
        ({"distributed_type": "FSDP", "fsdp_config": FSDP_2, "mixed_precision": "fp8"}, "fp8"),
        ({"distributed_type": "FSDP", "num_processes": 0}, "num"),
    ],
)
def test_what_is_not_read_is_refused_by_its_name(more: dict[str, Any], refused: str) -> None:
    with pytest.raises(InvalidInputError, match=refused):
        configured(**more)


@pytest.mark.parametrize("backend", [{"distributed_type": "MULTI_GPU"}, {"distributed_type": "DEEPSPEED"}])
def test_a_better_plan_is_told_by_the_keys_that_differ(backend: dict[str, Any]) -> None:
    work = training()["workload"] | {"seq_len": 1024}
    request = resolved(training(search={"launcher": "accelerate", "zero_stages": [3], "recompute": ["full"]}, workload=work))
    read = configured(num_processes=4, num_machines=1, **backend)
    found = explained(ReadCommand("", read, Question({}, ()), request))
    better = with_better(found, lambda asked: solve(asked, stop=never_stop, progress=ignore_progress)).better
    assert better is not None
    told = {each.flag.rpartition(".")[2]: (each.given, each.better) for each in better.differences}
    assert told["--distributed_type"] == (backend["distributed_type"], "FSDP")
    # The files that it reads are written by the command, and are no difference.
    assert "cat > accelerate.yaml" in better.command and "--config_file" not in told
