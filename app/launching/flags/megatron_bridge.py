"""The settings of Megatron-Bridge's recipes, ``section.key=value``, by the flags of Megatron-LM that say the same.

Sources: megatron/bridge/training/config.py, models/gpt_provider.py and recipes/gpt/vanilla_gpt.py of 0.7; the records of
megatron-core that they inherit from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshwright.app.launching.flags.flag import Flag, FlagTable, count, share, truth
from meshwright.app.launching.flags.recipes import RECIPES

RECIPE = "vanilla_gpt_pretrain_config"
"""The recipe of Megatron-LM's own defaults, whose model is said by settings alone."""

_MODEL = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size"),
    *("expert_tensor_parallel_size", "recompute_num_layers", "num_layers", "hidden_size", "ffn_hidden_size"),
    *("num_attention_heads", "kv_channels", "num_query_groups", "moe_router_topk", "moe_ffn_hidden_size", "vocab_size"),
    "moe_shared_expert_intermediate_size",
)
_MODEL_WORDS = (
    *("pipeline_model_parallel_layout", "cp_comm_type", "recompute_granularity", "recompute_method", "fp8_recipe"),
    *("position_embedding_type", "normalization", "cuda_graph_impl", "moe_token_dispatcher_type"),
)
_MODEL_SWITCHES = (
    *("sequence_parallel", "tp_comm_overlap", "bf16", "fp16", "cross_entropy_loss_fusion", "defer_embedding_wgrad_compute"),
    *("moe_enable_deepep", "add_qkv_bias", "qk_layernorm"),
)
_DDP_SWITCHES = ("use_distributed_optimizer", "overlap_grad_reduce", "use_megatron_fsdp")
_ACTIVATIONS_SQUARED = frozenset(("squared_relu", "relu2"))


def _listed(text: str) -> tuple[str, ...]:
    """Return the members of a list, as Hydra writes it or with blanks between."""
    return tuple(each.strip("'\" ") for each in text.strip("[]").replace(",", " ").split())


def _counts(text: str) -> tuple[int, ...]:
    return tuple(count(each) for each in _listed(text))


def _window(text: str) -> str:
    return ",".join(_listed(text))


def _layers(text: str) -> str:
    """Return which layers have experts, as Megatron-LM's flag says it."""
    return text if text.isdigit() else f"[{','.join(_listed(text))}]"


def _unquoted(text: str) -> str:
    return text.strip("'\"")


def _not(text: str) -> bool:
    return not truth(text)


def _key(section: str, field: str) -> tuple[str, ...]:
    return (f"{section}.{field}".replace("_", "-"),)


def _flag(section: str, field: str, read: Callable[[str], Any], *, key: str | None = None) -> Flag:
    return Flag(_key(section, key or field), field, read)


MEGATRON_BRIDGE = FlagTable(
    (
        *(_flag("model", field, count) for field in _MODEL),
        *(_flag("model", field, _unquoted) for field in _MODEL_WORDS),
        *(_flag("model", field, truth) for field in _MODEL_SWITCHES),
        *(_flag("ddp", field, truth) for field in _DDP_SWITCHES),
        _flag("model", "num_virtual_stages_per_pipeline_rank", count, key="virtual_pipeline_model_parallel_size"),
        _flag("model", "recompute_modules", _listed),
        _flag("model", "hierarchical_context_parallel_sizes", _counts),
        _flag("model", "num_experts", count, key="num_moe_experts"),
        _flag("model", "moe_layer_freq", _layers),
        _flag("model", "fp8_format", str, key="fp8"),
        _flag("model", "fp4_format", str, key="fp4"),
        _flag("model", "attention_dropout", float),
        _flag("model", "hidden_dropout", float),
        _flag("model", "window_size", _window),
        _flag("model", "swiglu", truth, key="gated_linear_unit"),
        _flag("model", "squared_relu", lambda text: text in _ACTIVATIONS_SQUARED, key="activation_func"),
        _flag("model", "disable_bias_linear", _not, key="add_bias_linear"),
        _flag("model", "untie_embeddings_and_output_weights", _not, key="share_embeddings_and_output_weights"),
        _flag("train", "micro_batch_size", count),
        _flag("train", "global_batch_size", count),
        _flag("dataset", "seq_length", count),
        _flag("dist", "use_tp_pp_dp_mapping", truth),
        _flag("ddp", "num_distributed_optimizer_instances", count),
        _flag("ddp", "data_parallel_sharding_strategy", str),
        _flag("ddp", "grad_reduce_in_bf16", _not, key="grad_reduce_in_fp32"),
        _flag("optimizer", "optimizer", str),
        _flag("optimizer", "exp_avg_dtype", str),
        _flag("optimizer", "optimizer_cpu_offload", truth),
        _flag("optimizer", "optimizer_offload_fraction", share),
    ),
    harmless=dict.fromkeys(
        (
            *("recipe", "mode", "dataset", "model.seq-length", "model.params-dtype", "model.pipeline-dtype", "optimizer.bf16"),
            *("optimizer.fp16", "optimizer.params-dtype", "mixed-precision", "optimizer.exp-avg-sq-dtype", "model.rotary-base"),
            *("optimizer.use-distributed-optimizer", "optimizer.use-precision-aware-optimizer", "model.bias-activation-fusion"),
            *("optimizer.overlap-cpu-optimizer-d2h-h2d", "ddp.overlap-param-gather", "model.bias-dropout-fusion"),
            *("model.apply-rope-fusion", "model.persist-layer-norm", "model.layernorm-epsilon", "model.rotary-percent"),
            *("model.rope-scaling", "model.rope-scaling-factor", "model.moe-grouped-gemm", "model.fp4-recipe"),
            *("model.use-te-rng-tracker", "model.gradient-accumulation-fusion", "model.moe-router-score-function"),
            *("model.moe-router-pre-softmax", "model.moe-router-topk-scaling-factor", "model.moe-router-enable-expert-bias"),
            *("model.moe-aux-loss-coeff", "model.moe-router-dtype"),
        ),
        True,
    ),
    sections=RECIPES.sections,
)
"""The settings that say something of a plan, its model or its work, into the fields of Megatron-LM's flags."""

OWN: Mapping[str, str] = {
    "norm-epsilon": "model.layernorm_epsilon",
    "rotary-base": "model.rotary_base",
    "rotary-percent": "model.rotary_percent",
    "use-rope-scaling": "model.rope_scaling",
    "rope-scaling-factor": "model.rope_scaling_factor",
    "moe-grouped-gemm": "model.moe_grouped_gemm",
    "moe-router-dtype": "model.moe_router_dtype",
    "moe-router-num-groups": "model.moe_router_num_groups",
    "moe-router-group-topk": "model.moe_router_group_topk",
    "moe-router-score-function": "model.moe_router_score_function",
    "moe-router-pre-softmax": "model.moe_router_pre_softmax",
    "moe-router-topk-scaling-factor": "model.moe_router_topk_scaling_factor",
    "moe-router-enable-expert-bias": "model.moe_router_enable_expert_bias",
    "moe-aux-loss-coeff": "model.moe_aux_loss_coeff",
    "moe-shared-expert-gate": "model.moe_shared_expert_gate",
    "cuda-graph-scope": "model.cuda_graph_scope",
    "fp4-recipe": "model.fp4_recipe",
    "overlap-param-gather": "ddp.overlap_param_gather",
    "overlap-cpu-optimizer-d2h-h2d": "optimizer.overlap_cpu_optimizer_d2h_h2d",
    "use-precision-aware-optimizer": "optimizer.use_precision_aware_optimizer",
    "exp-avg-sq-dtype": "optimizer.exp_avg_sq_dtype",
    "sgd-momentum": "optimizer.sgd_momentum",
    "lr": "optimizer.lr",
    "train-iters": "train.train_iters",
    "ckpt-format": "checkpoint.ckpt_format",
}
"""The settings of flags that no plan is read from."""


def key_of(field: str) -> str:
    """Return the key of the setting that says a field."""
    return MEGATRON_BRIDGE.name(field).replace("-", "_")
