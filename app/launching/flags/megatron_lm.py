"""The flags of Megatron-LM's ``pretrain_gpt.py`` (megatron/training/arguments.py, core 0.12 to 0.20)."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.app.launching.flags.flag import Flag, FlagTable, count, share


@dataclass(frozen=True, slots=True)
class MegatronFlags:
    """The flags of Megatron-LM that say something of a plan, its model or its work, under their own names; None or False where
    a command does not give one."""

    tensor_model_parallel_size: int | None = None
    pipeline_model_parallel_size: int | None = None
    context_parallel_size: int | None = None
    cp_comm_type: str | None = None
    hierarchical_context_parallel_sizes: tuple[int, ...] = ()
    expert_model_parallel_size: int | None = None
    expert_tensor_parallel_size: int | None = None
    num_layers_per_virtual_pipeline_stage: int | None = None
    num_virtual_stages_per_pipeline_rank: int | None = None
    pipeline_model_parallel_layout: str | None = None
    decoder_first_pipeline_num_layers: int | None = None
    decoder_last_pipeline_num_layers: int | None = None
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    sequence_parallel: bool = False
    tp_comm_overlap: bool = False
    use_tp_pp_dp_mapping: bool = False
    use_distributed_optimizer: bool = False
    num_distributed_optimizer_instances: int | None = None
    overlap_grad_reduce: bool = False
    use_megatron_fsdp: bool = False
    use_torch_fsdp2: bool = False
    data_parallel_sharding_strategy: str | None = None
    optimizer_cpu_offload: bool = False
    optimizer_offload_fraction: float | None = None
    recompute_activations: bool = False
    activations_checkpoint_method: str | None = None
    recompute_granularity: str | None = None
    recompute_method: str | None = None
    recompute_num_layers: int | None = None
    recompute_modules: tuple[str, ...] = ()
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    seq_length: int | None = None
    bf16: bool = False
    fp16: bool = False
    grad_reduce_in_bf16: bool = False
    fp8_format: str | None = None
    fp8_recipe: str | None = None
    fp4_format: str | None = None
    optimizer: str | None = None
    exp_avg_dtype: str | None = None
    attention_dropout: float | None = None
    hidden_dropout: float | None = None
    attention_backend: str | None = None
    cross_entropy_loss_fusion: bool = False
    defer_embedding_wgrad_compute: bool = False
    cuda_graph_impl: str | None = None
    moe_token_dispatcher_type: str | None = None
    moe_enable_deepep: bool = False
    num_layers: int | None = None
    hidden_size: int | None = None
    ffn_hidden_size: int | None = None
    num_attention_heads: int | None = None
    kv_channels: int | None = None
    group_query_attention: bool = False
    num_query_groups: int | None = None
    max_position_embeddings: int | None = None
    position_embedding_type: str | None = None
    use_rotary_position_embeddings: bool = False
    normalization: str | None = None
    swiglu: bool = False
    squared_relu: bool = False
    disable_bias_linear: bool = False
    add_qkv_bias: bool = False
    qk_layernorm: bool = False
    untie_embeddings_and_output_weights: bool = False
    window_size: str | None = None
    vocab_size: int | None = None
    tokenizer_type: str | None = None
    tokenizer_model: str | None = None
    merge_file: str | None = None
    num_experts: int | None = None
    moe_router_topk: int | None = None
    moe_ffn_hidden_size: int | None = None
    moe_layer_freq: str | None = None
    moe_shared_expert_intermediate_size: int | None = None
    multi_latent_attention: bool = False


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _counts(text: str) -> tuple[int, ...]:
    return tuple(count(word) for word in text.split())


_COUNTS = (
    *("pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size"),
    *("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank", "num_distributed_optimizer_instances"),
    *("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "recompute_num_layers", "micro_batch_size"),
    *("global_batch_size", "seq_length", "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels"),
    *("num_query_groups", "max_position_embeddings", "vocab_size", "num_experts", "moe_router_topk", "moe_ffn_hidden_size"),
    "moe_shared_expert_intermediate_size",
)
_WORDS = (
    *("cp_comm_type", "pipeline_model_parallel_layout", "data_parallel_sharding_strategy", "recompute_granularity"),
    *("recompute_method", "fp8_format", "fp8_recipe", "fp4_format", "optimizer", "exp_avg_dtype", "attention_backend"),
    *("cuda_graph_impl", "moe_token_dispatcher_type", "position_embedding_type", "normalization", "window_size"),
    *("tokenizer_type", "tokenizer_model", "moe_layer_freq", "activations_checkpoint_method"),
)
_SWITCHES = (
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "sequence_parallel"),
    *("use_distributed_optimizer", "use_megatron_fsdp", "use_torch_fsdp2", "optimizer_cpu_offload", "recompute_activations"),
    *(
        "bf16",
        "fp16",
        "grad_reduce_in_bf16",
        "cross_entropy_loss_fusion",
        "defer_embedding_wgrad_compute",
        "overlap_grad_reduce",
        "tp_comm_overlap",
        "use_tp_pp_dp_mapping",
    ),
    *("moe_enable_deepep", "group_query_attention", "use_rotary_position_embeddings", "swiglu", "squared_relu"),
    *("disable_bias_linear", "add_qkv_bias", "qk_layernorm", "untie_embeddings_and_output_weights", "multi_latent_attention"),
)
_DROPOUT = ("attention_dropout", "hidden_dropout")


def _named(field: str) -> tuple[str, ...]:
    return (field.replace("_", "-"),)


_VALUED_ASIDE = (
    *("lr", "min-lr", "lr-decay-style", "lr-decay-iters", "lr-decay-samples", "lr-warmup-iters", "lr-warmup-samples"),
    *("lr-warmup-fraction", "lr-warmup-init", "weight-decay", "weight-decay-incr-style", "start-weight-decay"),
    *("end-weight-decay", "adam-beta1", "adam-beta2", "adam-eps", "sgd-momentum", "clip-grad", "init-method-std", "seed"),
    *("train-iters", "train-samples", "exit-duration-in-mins", "exit-interval", "eval-iters", "eval-interval", "log-interval"),
    *("save", "load", "save-interval", "ckpt-format", "tensorboard-dir", "tensorboard-log-interval", "wandb-project"),
    *("wandb-exp-name", "wandb-save-dir", "data-path", "data-cache-path", "split", "vocab-file", "DDP-impl", "num-workers"),
    *("rotary-base", "rotary-percent", "rotary-seq-len-interpolation-factor", "norm-epsilon", "layernorm-epsilon"),
    *("make-vocab-size-divisible-by", "distributed-timeout-minutes", "distributed-backend", "moe-aux-loss-coeff"),
    *("moe-z-loss-coeff", "moe-router-score-function", "moe-router-topk-scaling-factor", "moe-router-bias-update-rate"),
    *("rampup-batch-size", "loss-scale", "initial-loss-scale", "min-loss-scale", "loss-scale-window", "logging-level"),
    *("moe-router-dtype", "rope-scaling-factor", "timing-log-level", "log-throughput-interval", "manual-gc-interval"),
    *("rotary-scaling-factor", "mscale", "mscale-all-dim"),
    *("step-batch-size-schedule", "decoupled-lr", "decoupled-min-lr", "empty-unused-memory-level", "profile-step-start"),
    "profile-step-end",
    *("tiktoken-pattern", "tiktoken-num-special-tokens", "per-split-data-args-path", "data-args-path", "hysteresis"),
)
_PLAIN_ASIDE = (
    *("mock-data", "use-mcore-models", "log-throughput", "log-timers-to-tensorboard", "log-validation-ppl-to-tensorboard"),
    *("log-memory-to-tensorboard", "log-num-zeros-in-grad", "log-params-norm", "no-load-optim", "no-load-rng", "no-save-optim"),
    *("no-save-rng", "use-checkpoint-args", "finetune", "override-opt_param-scheduler", "override-opt-param-scheduler"),
    *("use-rope-scaling", "apply-layernorm-1p", "moe-grouped-gemm", "manual-gc", "no-create-attention-mask-in-dataloader"),
    *("accumulate-allreduce-grads-in-fp32", "attention-softmax-in-fp32", "moe-router-enable-expert-bias", "async-save"),
    "moe-router-pre-softmax",
    *("dist-ckpt-strictly", "no-position-embedding", "use-dist-ckpt", "exit-signal-handler", "auto-detect-ckpt-format"),
    *("profile", "calculate-per-token-loss", "no-mmap-bin-files"),
    *("no-check-for-nan-in-loss-and-grad", "check-for-nan-in-loss-and-grad", "log-straggler", "transformer-impl-te"),
)

MEGATRON_LM = FlagTable(
    (
        Flag(("tensor-model-parallel-size", "model-parallel-size"), "tensor_model_parallel_size", count),
        *(Flag(_named(name), name, count) for name in _COUNTS),
        *(Flag(_named(name), name, str) for name in _WORDS),
        *(Flag(_named(name), name) for name in _SWITCHES),
        Flag(("merge-file",), "merge_file", str, is_name=True),
        *(Flag(_named(name), name, float) for name in _DROPOUT),
        Flag(("optimizer-offload-fraction",), "optimizer_offload_fraction", share),
        Flag(("recompute-modules",), "recompute_modules", _words, many=True),
        Flag(("hierarchical-context-parallel-sizes",), "hierarchical_context_parallel_sizes", _counts, many=True),
    ),
    harmless=dict.fromkeys(_VALUED_ASIDE, True) | dict.fromkeys(_PLAIN_ASIDE, False),
    not_priced={
        "overlap-param-gather": "as it is planned beside --overlap-grad-reduce: weights travel under the forward pass",
        "overlap-param-gather-with-optimizer-step": "weights that travel under the optimizer",
        "use-flash-attn": "as it is planned",
        "use-precision-aware-optimizer": "formats of the optimizer's states",
        "exp-avg-sq-dtype": "read with --exp-avg-dtype",
        "main-params-dtype": "formats of the optimizer's states",
        "main-grads-dtype": "formats of the gradients",
        "fp8-param-gather": "as it is planned: fp8 primary weights",
        "fp4-recipe": "read with --fp4-format",
        "fp8-amax-history-len": "scales of fp8",
        "fp8-amax-compute-algo": "scales of fp8",
        "overlap-cpu-optimizer-d2h-h2d": "as it is planned beside an optimizer on the host",
        "no-overlap-p2p-communication": "sends between stages that wait",
        "no-gradient-accumulation-fusion": "as it is planned beside FSDP",
        "no-rope-fusion": "kernels of rotary embeddings",
        "no-masked-softmax-fusion": "kernels of attention",
        "no-bias-swiglu-fusion": "kernels of the feed-forward network",
        "no-persist-layer-norm": "kernels of norms",
        "distribute-saved-activations": "saved activations that are split over tp",
        "cpu-offloading-num-layers": "activations in host memory",
        "cuda-graph-scope": "parts of a layer that run in CUDA graphs",
        "enable-cuda-graph": "host time of layers",
        "transformer-impl": "kernels of layers",
        "cross-entropy-fusion-impl": "kernels of the loss",
        "tp-comm-bootstrap-backend": "how chunked products start",
        "moe-permute-fusion": "kernels of experts",
        "moe-router-fusion": "kernels of experts",
        "moe-pad-expert-input-to-capacity": "rows of experts",
        "moe-expert-capacity-factor": "rows of experts",
        "moe-token-drop-policy": "rows of experts",
        "moe-router-load-balancing-type": "rows of experts, which are taken for even",
        "moe-router-num-groups": "nodes that a token's experts lie on",
        "moe-router-group-topk": "nodes that a token's experts lie on",
        "moe-shared-expert-overlap": "a shared expert that runs under messages",
        "overlap-moe-expert-parallel-comm": "messages of experts that run under other work",
        "delay-wgrad-compute": "when weight gradients are computed",
        "mtp-num-layers": "layers that predict more tokens",
        "microbatch-group-size-per-virtual-pipeline-stage": "order of micro-batches",
        "tp-comm-overlap-cfg": "how chunked products are cut",
        "disable-tp-comm-overlap-ag": "chunked products",
        "fsdp-double-buffer": "buffers of FSDP",
        "q-lora-rank": "latent attention: name the model with --model",
        "kv-lora-rank": "latent attention: name the model with --model",
        "qk-head-dim": "latent attention: name the model with --model",
        "qk-pos-emb-head-dim": "latent attention: name the model with --model",
        "v-head-dim": "latent attention: name the model with --model",
        "moe-shared-expert-gate": "a gate of the shared expert",
    },
    switches=frozenset(
        (
            *("overlap-param-gather", "overlap-param-gather-with-optimizer-step", "use-flash-attn"),
            *("use-precision-aware-optimizer", "fp8-param-gather", "overlap-cpu-optimizer-d2h-h2d", "no-rope-fusion"),
            *("no-overlap-p2p-communication", "no-gradient-accumulation-fusion", "no-masked-softmax-fusion"),
            *("no-bias-swiglu-fusion", "no-persist-layer-norm", "distribute-saved-activations", "enable-cuda-graph"),
            *("moe-permute-fusion", "moe-router-fusion", "moe-pad-expert-input-to-capacity", "moe-shared-expert-overlap"),
            *("overlap-moe-expert-parallel-comm", "delay-wgrad-compute", "disable-tp-comm-overlap-ag", "fsdp-double-buffer"),
            "moe-shared-expert-gate",
        )
    ),
)
