"""nanotron: one YAML file of mesh, model, batch and optimizer, and torchrun over its run_train.py.

Keys are those of src/nanotron/config (config.py, parallelism_config.py, models_config.py), main of 7 April 2026.
"""

from __future__ import annotations

from typing import Any

from meshwright.app.base.quoting import yaml_text
from meshwright.app.launching.exporters.command import command_text, flag, node_assumptions, torchrun
from meshwright.app.launching.exporters.export import Export
from meshwright.app.launching.exporters.implemented import not_as_stated
from meshwright.app.launching.exporters.launchable import recompute_differs, recompute_mode
from meshwright.costmodels.model.formats import MatmulRecipe, SavedFormat
from meshwright.costmodels.pipeline import PipelineRuntime, Schedule, names_in
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan, pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Launcher, Recompute
from meshwright.solver.problem.graph import Hyperparameters
from meshwright.solver.problem.launchers.decoders import DecoderShape, decoder_shape
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload

VERSION = "0.4"
SCRIPT = "run_train.py"
CONFIG = "nanotron.yaml"
STEPS = 100
LEARNING_RATE = 1e-5
"""Stand-ins: no plan decides them."""
_BASE = 10_000.0
"""Base of the rotary frequencies where the model's source states none (Su et al. 2021, section 3.2.2)."""
_EPSILON = 1e-5
"""The addend to the variance in norms where the model's source states none."""


def export_plan(answer: Plan, request: TrainingRequest) -> Export:
    """The configuration, and torchrun over nanotron's script; raises ExportError for a model that is no plain decoder."""
    plan = pipeline_plan(answer)
    workload, stated = request.workload, request.model.hyperparameters or Hyperparameters()
    shape = decoder_shape(request.model)
    parts = [*torchrun(request, plan.devices), (SCRIPT, *flag("config-file", CONFIG))]
    return Export(
        launcher=Launcher.NANOTRON,
        version=VERSION,
        command=command_text(environment=(("CUDA_DEVICE_MAX_CONNECTIONS", "1"),), parts=parts),
        files={CONFIG: yaml_text(_config(plan, workload, shape, stated))},
        inexpressible=(*recompute_differs(plan), *_inexpressible(workload, stated)),
        assumptions=(
            *node_assumptions(request, plan.devices),
            "run in a checkout of nanotron's main branch (April 2026: PyPI's 0.4 has not all of these keys), with flash-attn",
            "data are dummy tokens; the learning rate, steps, initial weights and the folder of checkpoints are stand-ins",
            "gradients in bf16 lie beside their sums in fp32 (DDP's buckets): 20 bytes a parameter where 18 are planned, "
            "less what ZeRO-1 shards",
            *_stated_nowhere(stated),
        ),
    )


def _config(plan: PipelinePlan, workload: TrainingWorkload, shape: DecoderShape, stated: Hyperparameters) -> dict[str, Any]:
    axes, microbatch = plan.axes, plan.microbatch
    names = names_in(PipelineRuntime.NANOTRON)
    return {
        "general": {"project": "meshwright", "run": "planned", "seed": 42, "ignore_sanity_checks": True},
        "parallelism": {
            "dp": axes.dp,
            "pp": axes.pp,
            "tp": axes.tp,
            "expert_parallel_size": 1,
            "context_parallel_size": 1,
            "pp_engine": names[Schedule(plan.schedule)] if axes.pp > 1 else names[Schedule.ONE_F_ONE_B],
            "tp_mode": "REDUCE_SCATTER" if plan.sequence_parallel else "ALL_REDUCE",
            "tp_linear_async_communication": False,
            "tp_recompute_allgather": True,
            "recompute_layer": recompute_mode(plan) is Recompute.FULL,
        },
        "model": {
            "dtype": "bfloat16",
            "make_vocab_size_divisible_by": 1,
            "init_method": {"std": 0.02},
            "model_config": _model(workload, shape, stated),
        },
        "tokens": {
            "sequence_length": workload.seq_len,
            "micro_batch_size": microbatch.size,
            "batch_accumulation_per_replica": microbatch.count,
            "train_steps": STEPS,
        },
        "optimizer": {
            "zero_stage": plan.stages[0].zero_stage,
            "accumulate_grad_in_fp32": True,
            "weight_decay": 0.01,
            "clip_grad": 1.0,
            "optimizer_factory": {
                "name": "adamW",
                "adam_beta1": 0.9,
                "adam_beta2": 0.95,
                "adam_eps": 1e-8,
                "torch_adam_is_fused": True,
            },
            "learning_rate_scheduler": {
                "learning_rate": LEARNING_RATE,
                "lr_warmup_style": "linear",
                "lr_decay_style": "cosine",
            },
        },
        "data_stages": [{"name": "dummy", "start_training_step": 1, "data": {"dataset": None, "seed": 42}}],
        "checkpoints": {"checkpoints_path": "checkpoints", "checkpoint_interval": STEPS, "save_final_state": False},
        "logging": {"log_level": "info", "iteration_step_info_interval": 1},
        "metrics_logging": {"log_level": 0},
    }


def _model(workload: TrainingWorkload, shape: DecoderShape, stated: Hyperparameters) -> dict[str, Any]:
    """Its model of Qwen2's layers, which are Llama's with biases of q, k and v or without."""
    return {
        "is_qwen2_config": True,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied,
        "attention_bias": shape.qkv_bias,
        "hidden_act": "silu",
        "max_position_embeddings": max(workload.seq_len, stated.positions or 0),
        "rope_theta": float(stated.rotary_base or _BASE),
        "rms_norm_eps": stated.norm_epsilon or _EPSILON,
        "_attn_implementation": "flash_attention_2",
        "log_attn_probs": False,
    }


def _inexpressible(workload: TrainingWorkload, stated: Hyperparameters) -> tuple[str, ...]:
    lost = []
    if workload.gradient_dtype is not DType.FP32:
        lost.append(
            f"{workload.gradient_dtype.value} gradients: nanotron has fp32 weights of the optimizer beside gradients summed in "
            "fp32 alone, which take four bytes a parameter more"
        )
    if workload.matmul is not MatmulRecipe.WORKING:
        lost.append(f"{workload.matmul.value} products: nanotron's are {workload.precision.value}")
    if workload.saved_activations is SavedFormat.FP8:
        lost.append("saved activations in fp8: nanotron keeps them in 16 bits, which takes more memory than planned")
    if stated.rotary_scaling is not None:
        lost.append(
            f"rotary positions stretched by {stated.rotary_scaling.kind.value}: nanotron's Qwen2 does not stretch them so"
        )
    return (*lost, *not_as_stated(workload, Launcher.NANOTRON, said=(), instead="no key says so, and nanotron's own is"))


def _stated_nowhere(stated: Hyperparameters) -> tuple[str, ...]:
    keys = (("rope_theta", stated.rotary_base), ("rms_norm_eps", stated.norm_epsilon))
    missing = [name for name, value in keys if value is None]
    return (f"the request does not state the model's {' and '.join(missing)}: check {CONFIG}",) if missing else ()
