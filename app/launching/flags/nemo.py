"""The arguments of the calls in a script of NeMo 2, by the settings of Megatron-Bridge that say the same.

Sources: nemo/lightning/pytorch (strategies/megatron_strategy.py, plugins/mixed_precision.py, callbacks) and
nemo/collections/llm/gpt (model/base.py, data/mock.py) of 2.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshwright.app.launching.flags.flag import Flag, FlagTable, count, truth
from meshwright.app.launching.flags.megatron_bridge import MEGATRON_BRIDGE

CALLS: Mapping[str, str] = {
    "GPTConfig": "model",
    "MegatronStrategy": "strategy",
    "DistributedDataParallelConfig": "ddp",
    "OptimizerConfig": "optimizer",
    "MegatronMixedPrecision": "precision",
    "MegatronCommOverlapCallback": "overlap",
    "MockDataModule": "data",
    "PreTrainingDataModule": "data",
    "FineTuningDataModule": "data",
    "Trainer": "trainer",
}
"""Names of calls, with the sections under which their arguments are read."""

_OF_STRATEGY = frozenset(
    (
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
        *("context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel"),
        "pipeline_model_parallel_layout",
    )
)
_MOVED: Mapping[str, str] = {
    "dataset.seq_length": "data.seq_length",
    "train.micro_batch_size": "data.micro_batch_size",
    "train.global_batch_size": "data.global_batch_size",
    "train.train_iters": "trainer.max_steps",
    "dist.use_tp_pp_dp_mapping": "strategy.use_tp_pp_dp_mapping",
    "ddp.num_distributed_optimizer_instances": "strategy.num_distributed_optimizer_instances",
    "ddp.grad_reduce_in_fp32": "precision.grad_reduce_in_fp32",
    "model.fp8": "precision.fp8",
    "model.fp8_recipe": "precision.fp8_recipe",
    "model.tp_comm_overlap": "overlap.tp_comm_overlap",
}
_UNSAID = frozenset(
    (
        *("model.bf16", "model.fp16", "model.fp4", "model.cuda_graph_impl", "model.hierarchical_context_parallel_sizes"),
        *("model.moe_layer_freq", "ddp.use_megatron_fsdp", "ddp.data_parallel_sharding_strategy"),
        *("model.rope_scaling", "model.rope_scaling_factor", "model.fp4_recipe", "model.cuda_graph_scope"),
        *("model.use_te_rng_tracker", "tokenizer.vocab_size", "checkpoint.ckpt_format"),
    )
)
"""Settings that no argument of a call here says."""


def argument_of(key: str) -> str | None:
    """Return the section and the argument that say a setting of Megatron-Bridge; None where none does."""
    if key in _UNSAID:
        return None
    section, _, name = key.partition(".")
    return f"strategy.{name}" if section == "model" and name in _OF_STRATEGY else _MOVED.get(key, key)


def _read_as_settings() -> tuple[Flag, ...]:
    found = ((each, argument_of(each.names[0].replace("-", "_"))) for each in MEGATRON_BRIDGE.flags)
    return tuple(replace(each, names=(name.replace("_", "-"),)) for each, name in found if name is not None)


NEMO = FlagTable(
    (
        *_read_as_settings(),
        Flag(("overlap.overlap-grad-reduce",), "overlap_grad_reduce", truth),
        Flag(("overlap.defer-embedding-wgrad-compute",), "defer_embedding_wgrad_compute", truth),
        Flag(("precision.precision",), "precision", str),
        Flag(("trainer.devices",), "devices", count),
        Flag(("trainer.num-nodes",), "nodes", count),
    ),
    harmless=dict.fromkeys(
        (
            *(name for name in MEGATRON_BRIDGE.harmless if name.startswith(("model.", "ddp.", "optimizer."))),
            *("overlap.overlap-param-gather", "ddp.check-for-nan-in-grad", "ddp.average-in-collective", "optimizer.lr"),
            *("precision.params-dtype", "precision.pipeline-dtype", "precision.autocast-enabled", "model.parallel-output"),
            *("strategy.pipeline-dtype", "strategy.gradient-as-bucket-view", "model.rotary-base", "optimizer.weight-decay"),
            *("strategy.ckpt-async-save", "strategy.ckpt-parallel-load", "strategy.ckpt-load-optimizer"),
            *("optimizer.adam-beta1", "optimizer.adam-beta2", "optimizer.adam-eps", "optimizer.clip-grad"),
            *("optimizer.sgd-momentum", "model.make-vocab-size-divisible-by", "model.init-method-std"),
        ),
        True,
    ),
    not_priced={
        "strategy.fsdp": "shards of weights and gradients: read as none",
        "strategy.ddp": "how gradients are summed, where it is no record",
        "overlap.bucket-size": "messages of gradients",
        "data.rampup-batch-size": "a batch that grows",
    },
    sections={
        **dict.fromkeys(("data", "trainer"), ""),
        "precision": "number formats",
        "overlap": "what travels beside products",
        "strategy": "how Megatron-Core trains",
        "optimizer": "the optimizer",
        "ddp": "sums of gradients",
        "model": "the model",
    },
)
"""The arguments that say something of a plan, its model or its work, into the fields of Megatron-LM's flags; ``precision``,
``devices`` and ``nodes`` beside them."""
