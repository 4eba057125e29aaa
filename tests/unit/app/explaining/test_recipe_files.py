"""Recipes of verl, NeMo, Megatron-Bridge and NeMo-RL, read for the model and the layout of their training."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.app.launching.parts.flag import Standing
from meshwright.app.launching.parts.launch_files import LaunchFiles
from meshwright.app.launching.parts.stated import StatedTraining
from meshwright.app.launching.reading import read_command
from meshwright.app.requests.options import OneLine
from meshwright.app.service.explaining.explain import asked_of, explained, with_better
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.request import PlanRequest
from tests.unit.app.explaining.resolving import resolve

VERL = """set -x
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=a.parquet data.train_batch_size=1024 \\
    data.max_prompt_length=512 data.max_response_length=1024 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \\
    actor_rollout_ref.model.enable_gradient_checkpointing=True actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 actor_rollout_ref.actor.fsdp_config.param_offload=False \\
    +actor_rollout_ref.actor.entropy_coeff=0 actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\
    trainer.n_gpus_per_node=8 trainer.nnodes=1 $@
"""
VERL_MEGATRON = VERL.replace("trainer.nnodes=1", "trainer.nnodes=2").replace(
    "$@",
    "actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 "
    "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2",
)
NEMO = """
trainer: {devices: 8, num_nodes: 2, precision: bf16}
model:
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: null
  micro_batch_size: 1
  global_batch_size: 128
  encoder_seq_length: 4096
  sequence_parallel: true
  activations_checkpoint_granularity: selective
  optim: {name: distributed_fused_adam}
"""
NEMO_RL = """
policy:
  model_name: meta-llama/Llama-3.1-8B
  train_global_batch_size: 64
  train_micro_batch_size: 1
  max_total_sequence_length: 4096
  precision: bfloat16
  dtensor_cfg: {enabled: true, tensor_parallel_size: 2, context_parallel_size: 1, activation_checkpointing: true}
  megatron_cfg: {enabled: false, tensor_model_parallel_size: 8}
cluster: {gpus_per_node: 8, num_nodes: 1}
"""
BRIDGE = (
    "torchrun --nproc_per_node=8 scripts/training/run_recipe.py --recipe llama31_8b_pretrain_config "
    "model.tensor_model_parallel_size=2 model.context_parallel_size=2 train.global_batch_size=64 train.micro_batch_size=1 "
    "model.seq_length=8192"
)
FIELDS = ("world", "tp", "pp", "cp", "microbatch", "global_batch", "seq_len", "zero_stage")


@pytest.mark.parametrize(
    ("text", "launcher", "expected"),
    [
        (VERL, "accelerate", (8, 1, 1, 1, 16, 256, 1536, 3)),
        (VERL_MEGATRON, "megatron-lm", (16, 2, 2, 1, 16, 256, 1536, 1)),
        (NEMO, "megatron-lm", (16, 4, 2, 1, 1, 128, 4096, 1)),
        (NEMO_RL, "accelerate", (8, 2, 1, 1, 1, 64, 4096, 3)),
        ("uv run examples/run_sft.py --config r.yaml cluster.num_nodes=2", "accelerate", (16, 2, 1, 1, 1, 64, 4096, 3)),
        (BRIDGE, "megatron-bridge", (8, 2, 1, 2, 1, 64, 8192, 1)),
    ],
)
def test_recipes_say_their_layout(text: str, launcher: str, expected: tuple[Any, ...]) -> None:
    found = read_command(text, LaunchFiles({"r.yaml": NEMO_RL}))
    assert isinstance(found, StatedTraining)
    assert (found.launcher.value, tuple(getattr(found, name) for name in FIELDS)) == (launcher, expected)
    assert not [flag for flag in found.given if flag.standing is Standing.UNKNOWN]
    asked = asked_of(text, OneLine("llama-3.1-8b", gpus="2x8xH100"), resolve, LaunchFiles({"r.yaml": NEMO_RL}))
    assert explained(asked).problems == ()


def test_verl_recomputes_layers_unless_told_and_updates_with_every_answer() -> None:
    """``hf_model.yaml`` has ``enable_gradient_checkpointing: True``; workers multiply the mini-batch by ``rollout.n``."""
    usual = VERL.replace("actor_rollout_ref.model.enable_gradient_checkpointing=True", "actor_rollout_ref.rollout.n=5")
    found = read_command(usual)
    assert isinstance(found, StatedTraining)
    assert (found.recompute, found.global_batch) == (Recompute.FULL, 5 * 256)
    for text, expected in (
        (VERL.replace("checkpointing=True", "checkpointing=False"), Recompute.NONE),
        # Megatron-Core's own setting holds there.
        (VERL_MEGATRON.replace("actor_rollout_ref.model.enable_gradient_checkpointing=True", ""), Recompute.NONE),
        (NEMO_RL.replace("activation_checkpointing: true", "sequence_parallel: false"), Recompute.NONE),
    ):
        other = read_command(text)
        assert isinstance(other, StatedTraining)
        assert other.recompute is expected


@pytest.mark.parametrize("text", [VERL, VERL_MEGATRON, NEMO, NEMO_RL])
def test_the_command_of_another_program_is_no_better_one(text: str) -> None:
    found = explained(asked_of(text, OneLine("llama-3.1-8b", gpus="2x8xH100"), resolve))
    assert found.none_better

    def solve(request: PlanRequest) -> Plan:
        raise AssertionError("searched")

    assert with_better(found, solve).better is None
    assert "answers that are generated" in " ".join(found.not_counted) or "actor_rollout_ref" not in text
