"""Runs over Hugging Face's Trainer: an export read back is the plan that it was written from, and what people write."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.app.launching.exporters import export
from meshwright.app.launching.exporters.launch import script
from meshwright.app.launching.parts.flag import Standing
from meshwright.app.launching.parts.launch_files import LaunchFiles
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.app.launching.reading import read_command
from meshwright.app.requests.options import OneLine
from meshwright.app.service.explaining.explain import Question, ReadCommand, asked_of, explained
from meshwright.app.service.explaining.explanation import Verdict
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.pipeline_plan import pipelines_of
from meshwright.solver.api import solve
from meshwright.solver.control import ignore_progress, never_stop
from tests.support.requests_given import resolved, training
from tests.unit.app.explaining.resolving import resolve

DORA = {"rank": 16, "targets": ["q_proj", "v_proj"], "base_format": "int8", "kind": "dora"}
QLORA = {"rank": 16, "targets": ["q_proj", "v_proj"], "base_format": "nf4"}
LORA = {"rank": 8, "targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}


def stated(text: str, **files: str) -> StatedTraining:
    found = read_command(text, LaunchFiles({name.replace("_yaml", ".yaml"): text for name, text in files.items()}))
    assert isinstance(found, StatedTraining)
    assert not [flag.name for flag in found.given if flag.standing is Standing.UNKNOWN]
    return found


@pytest.mark.slow_beyond(4)
@pytest.mark.parametrize("launcher", ["hf-trainer", "trl", "axolotl", "llama-factory"])
@pytest.mark.parametrize(
    ("search", "adapter"),
    [
        ({"zero_stages": [3], "recompute": ["full"]}, None),
        ({"zero_stages": [2], "recompute": ["none"]}, None),
        ({"zero_stages": [1], "recompute": ["full"]}, None),
        ({"zero_stages": [0], "recompute": ["none"]}, None),
        ({"zero_stages": [0], "recompute": ["full"]}, LORA),
        ({"zero_stages": [0], "recompute": ["none"]}, QLORA),
        ({"zero_stages": [0], "recompute": ["none"]}, DORA),
    ],
    ids=str,
)
def test_the_script_of_a_plan_predicts_the_plan(launcher: str, search: dict[str, Any], adapter: dict[str, Any] | None) -> None:
    if launcher == "hf-trainer" and adapter is not None:
        pytest.skip("the Trainer itself has no adapters")
    work = training()["workload"] | {"seq_len": 1024} | ({} if adapter is None else {"adapter": adapter})
    request = resolved(training(search={"launcher": launcher, **search}, workload=work, model={"catalog": "llama-3.2-3b"}))
    plan = solve(request, stop=never_stop, progress=ignore_progress)
    assert plan.feasible
    text = script(export(plan, request, launcher))
    read = stated(text)
    found = explained(ReadCommand(text, read, Question({}, ()), request))
    assert found.problems == () and found.plan is not None
    own, again = pipelines_of(plan), pipelines_of(found.plan)
    assert (again.axes, again.microbatch) == (own.axes, own.microbatch)
    assert (again.stages[0].zero_stage, again.stages[0].recompute) == (own.stages[0].zero_stage, own.stages[0].recompute)
    assert plan.predicted is not None and found.plan.predicted is not None
    assert found.plan.predicted.step_time_s == pytest.approx(plan.predicted.step_time_s)
    assert (read.seq_len, read.model) == (1024, "meta-llama/Llama-3.2-3B")
    assert read.workload["precision"] == "bf16"
    assert read.workload.get("adapter") == (None if adapter is None else {"base_format": "working"} | adapter)


@pytest.mark.parametrize("adapter", [LORA, QLORA, DORA])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_adapters_of_a_script_over_accelerate_are_read_back(adapter: dict[str, Any], recompute: str) -> None:
    search = {"launcher": "accelerate", "zero_stages": [0], "recompute": [recompute]}
    request = resolved(training(search=search, workload=training()["workload"] | {"seq_len": 1024, "adapter": adapter}))
    written = export(solve(request, stop=never_stop, progress=ignore_progress), request, "accelerate")
    read = stated(script(written))
    assert read.workload["adapter"] == {"base_format": "working"} | adapter
    assert read.recompute == recompute
    assert any("peft.get_peft_model" in said for said in written.assumptions)


AXOLOTL = """
base_model: NousResearch/Meta-Llama-3.1-8B
load_in_4bit: true
strict: false
datasets:
  - path: mhenrichsen/alpaca_2k_test
    type: alpaca
val_set_size: 0.05
output_dir: ./outputs/out
adapter: qlora
lora_r: 32
lora_alpha: 16
lora_target_linear: true
sequence_len: 4096
sample_packing: true
pad_to_sequence_len: true
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 1
optimizer: paged_adamw_32bit
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
tf32: false
gradient_checkpointing: true
flash_attention: true
special_tokens:
  pad_token: "<|end_of_text|>"
"""
FACTORY = """
### model
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
trust_remote_code: true

### method
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all

### dataset
dataset: identity,alpaca_en_demo
template: llama3
cutoff_len: 2048
max_samples: 1000
overwrite_cache: true
preprocessing_num_workers: 16

### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
"""
TRAINER = "train.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 4 --gradient_accumulation_steps 8"
SIZES = ("microbatch", "accumulation", "seq_len", "zero_stage", "world")


@pytest.mark.parametrize(
    ("text", "launcher", "sizes"),
    [
        (AXOLOTL, "axolotl", (2, 4, 4096, 0, None)),
        ("axolotl train run.yaml", "axolotl", (2, 4, 4096, 0, None)),
        ("torchrun --nproc_per_node 8 -m axolotl.cli.train run.yaml", "axolotl", (2, 4, 4096, 0, 8)),
        (
            "accelerate launch --num_processes 4 -m axolotl.cli.train run.yaml --micro_batch_size 1",
            "axolotl",
            (1, 4, 4096, 0, 4),
        ),
        (FACTORY, "llama-factory", (1, 8, 2048, 0, None)),
        ("llamafactory-cli train f.yaml", "llama-factory", (1, 8, 2048, 0, None)),
        ("FORCE_TORCHRUN=1 llamafactory-cli train f.yaml cutoff_len=4096", "llama-factory", (1, 8, 4096, 0, None)),
        ("torchrun --nproc_per_node=8 src/train.py f.yaml", "llama-factory", (1, 8, 2048, 0, 8)),
        ("accelerate launch --num_processes 2 src/train.py f.yaml", "llama-factory", (1, 8, 2048, 0, 2)),
        (f"torchrun --nproc_per_node=8 {TRAINER} --bf16 True --fsdp 'full_shard auto_wrap'", "hf-trainer", (4, 8, 1024, 3, 8)),
        (f"torchrun --nproc_per_node=8 {TRAINER} --fsdp shard_grad_op --model_max_length 512", "hf-trainer", (4, 8, 512, 2, 8)),
        (f"python {TRAINER} --block_size 2048", "hf-trainer", (4, 8, 2048, 0, None)),
        (f"python -m my.{TRAINER.replace('.py', '')}", "hf-trainer", (4, 8, 1024, 0, None)),
        (f"accelerate launch --num_processes 8 --use_fsdp {TRAINER} --max_seq_length 4096", "accelerate", (4, 8, 4096, 3, 8)),
        ("trl sft --config s.yaml --accelerate_config fsdp2 --num_processes 8", "trl", (2, 4, 1024, 3, 8)),
        ("trl sft --config s.yaml --per_device_train_batch_size 8", "trl", (8, 4, 1024, 0, None)),
        (
            "accelerate launch --config_file a/zero3_offload.yaml --num_processes=8 sft.py --config s.yaml",
            "trl",
            (2, 4, 1024, 3, 8),
        ),
        ("accelerate launch --num_processes 2 sft.py --config s.yaml --use_peft --lora_r 16", "trl", (2, 4, 1024, 0, 2)),
    ],
)
def test_files_and_arguments_of_trainers(text: str, launcher: str, sizes: tuple[int | None, ...]) -> None:
    own = "model_name_or_path: Qwen/Qwen2.5-0.5B\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 4\n"
    found = stated(text, run_yaml=AXOLOTL, f_yaml=FACTORY, s_yaml=own)
    assert (found.launcher.value, tuple(getattr(found, name) for name in SIZES)) == (launcher, sizes)


def test_adapters_are_those_of_the_request() -> None:
    every = LORA["targets"]
    assert stated(AXOLOTL).workload["adapter"] == {"rank": 32, "targets": every, "base_format": "nf4"}
    assert stated(FACTORY).workload["adapter"] == {"rank": 8, "targets": every, "base_format": "working"}
    asked = asked_of(FACTORY, OneLine("llama-3.1-8b", gpus="8xH100"), resolve)
    assert asked.request.workload.adapter.rank == 8  # type: ignore[union-attr]


FSDP = "--bf16 --fsdp full_shard"
ONCE = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: {fsdp_version: 1}
num_processes: 8
"""


@pytest.mark.parametrize(
    ("command", "loaders"),
    [
        (f"torchrun --nproc_per_node 8 {TRAINER} {FSDP}", "each rank"),
        (f"torchrun --nproc_per_node 8 {TRAINER} {FSDP} --fsdp_config '{{\"cpu_ram_efficient_loading\": true}}'", "the first"),
        (f"accelerate launch --num_processes 8 --use_fsdp {TRAINER}", "the first"),
        (f"accelerate launch --use_fsdp --fsdp_cpu_ram_efficient_loading false {TRAINER}", "each rank"),
        (f"accelerate launch --config_file once.yaml {TRAINER}", "the first"),
        (f"torchrun --nproc_per_node 8 {TRAINER}", "each rank"),
        (f"deepspeed --num_gpus 8 {TRAINER} --deepspeed ds_z3_config.json", "the first"),
        (f"deepspeed --num_gpus 8 {TRAINER} --deepspeed ds_z2_config.json", "each rank"),
        ("trl sft --config qlora.yaml", "none"),
    ],
)
def test_who_reads_the_checkpoint(command: str, loaders: str) -> None:
    qlora = "model_name_or_path: Qwen/Qwen2.5-0.5B\nuse_peft: true\nload_in_4bit: true\n"
    assert stated(command, once_yaml=ONCE, qlora_yaml=qlora).loaders.value.startswith(loaders)


def test_a_checkpoint_that_each_rank_reads_is_too_much_for_a_host() -> None:
    words = "train.py --model_name_or_path meta-llama/Llama-3.1-70B --per_device_train_batch_size 1 --block_size 4096 --bf16"
    each = f"torchrun --nproc_per_node 8 {words} --fsdp 'full_shard offload'"
    line = OneLine("", gpus="8xA100", batch="64", host_memory="1000GB")
    found = explained(asked_of(each, line, resolve))
    assert found.verdict is Verdict.DOES_NOT_START
    assert "out of host memory at the start: each rank reads the 131.4 GiB" in found.problems[0]
    assert "1051.3 GiB on a node that has 931.3 GiB" in found.problems[0]
    once = f"{each} --fsdp_config '{{\"cpu_ram_efficient_loading\": true}}'"
    assert not any("at the start" in problem for problem in explained(asked_of(once, line, resolve)).problems)


def test_what_a_name_says_is_told() -> None:
    found = stated("accelerate launch --config_file a/zero3_offload.yaml train.py --per_device_train_batch_size 1")
    assert (found.zero_stage, found.offload.optimizer, found.offload.weights) == (3, 1.0, 1.0)
    assert "a/zero3_offload.yaml was not given" in found.notes[0] and "--with" in found.notes[0]


def test_deepspeeds_file_by_its_name() -> None:
    words = "--model_name_or_path a/b --deepspeed c/ds_config_zero2.json --per_device_train_batch_size 2 --bf16"
    for starter in ("deepspeed --num_gpus 8", "torchrun --nproc_per_node 8"):
        found = stated(f"{starter} train.py {words}")
        assert (found.launcher.value, found.zero_stage, found.world, found.offload.is_nothing) == ("deepspeed", 2, 8, True)
        assert "c/ds_config_zero2.json was not given" in found.notes[0]
    found = stated("deepspeed --num_gpus 4 src/train.py f.yaml", f_yaml=FACTORY + "deepspeed: ds_z3_offload_config.json\n")
    assert (found.launcher.value, found.zero_stage, found.offload.optimizer, found.world) == ("llama-factory", 3, 1.0, 4)


@pytest.mark.parametrize("text", ["axolotl train run.yaml", "llamafactory-cli train run.yaml", "trl sft --config run.yaml"])
def test_files_that_are_missing_are_asked_for(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"run\.yaml.*--with"):
        read_command(text)
