"""Megatron-LM's ``pretrain_gpt.py``: its flags (megatron/training/arguments.py, core 0.12 to 0.20), and a run of it in the
words of plans; a plan as its arguments is in `megatron_core`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.app.launching.parts.flag import Flag, FlagTable, GivenFlag, count, share
from meshwright.app.launching.parts.start import Start
from meshwright.app.launching.parts.stated import StatedTraining, stated_modules
from meshwright.app.models.catalog import model, model_names
from meshwright.app.models.catalog.copies import catalogue_name_in_words
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.memory.training_state import Offload, Optimizer
from meshwright.costmodels.model.dims import VOCAB
from meshwright.costmodels.model.formats import MatmulRecipe
from meshwright.costmodels.model.implementation import (
    AttentionKernels,
    Dropout,
    GradientReduction,
    HeadGradients,
    HostPath,
    LossKernels,
)
from meshwright.costmodels.network.token_dispatch import TokenDispatch
from meshwright.costmodels.pipeline import Schedule
from meshwright.costmodels.units import DType
from meshwright.solver.problem.carried_choices import USUAL_STAGE, MeshChoices, StageChoices
from meshwright.solver.problem.choices import Launcher, Recompute, TpOverlap
from meshwright.solver.problem.declared.cp_keys import CpKeys
from meshwright.solver.problem.declared.expert_overlap import ExpertOverlap
from meshwright.solver.problem.declared.rank_order import RankOrder


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
    overlap_moe_expert_parallel_comm: bool = False
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
    mtp_num_layers: int | None = None


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
    *("moe_shared_expert_intermediate_size", "mtp_num_layers"),
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
        "overlap_moe_expert_parallel_comm",
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
        "delay-wgrad-compute": "when weight gradients are computed",
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
            *("delay-wgrad-compute", "disable-tp-comm-overlap-ag", "fsdp-double-buffer"),
            "moe-shared-expert-gate",
        )
    ),
)


# Its command in the words of plans.

_FSDP_STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_FULLY_SHARDED = 3
_RECIPES = {
    "delayed": MatmulRecipe.FP8_DELAYED,
    "tensorwise": MatmulRecipe.FP8_CURRENT,
    "blockwise": MatmulRecipe.FP8_BLOCKWISE,
    "mxfp8": MatmulRecipe.MXFP8,
}
_OPTIMIZERS = {"adam": Optimizer.ADAMW, "sgd": Optimizer.SGD_MOMENTUM, "muon": Optimizer.MUON, "dist_muon": Optimizer.MUON}
_SMALL_MOMENTS = {"fp8": Optimizer.ADAMW_8BIT, "bf16": Optimizer.ADAMW_BF16}


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """Decoder layers of each part, and virtual stages a rank; ``problem`` is why there are none."""

    parts: tuple[int, ...]
    chunks: int
    problem: str | None = None


def read_run(start: Start) -> StatedTraining:
    """Return what the flags behind ``pretrain_gpt.py`` state; raises InvalidInputError for a value that can't be."""
    read = MEGATRON_LM.read(start.words)
    return stated_by_flags(MegatronFlags(**read.fields), read.given, start, Launcher.MEGATRON_LM)


def stated_by_flags(flags: MegatronFlags, given: tuple[GivenFlag, ...], start: Start, launcher: Launcher) -> StatedTraining:
    """Return what flags state of a run of a launcher over Megatron-Core, ``given`` as its command writes them.

    Raises InvalidInputError for a value that can't be.
    """
    pipeline = _pipeline(flags)
    recompute, stages, notes = _recompute(flags)
    unpaired = _unpaired(flags, pipeline, recompute)
    sizes = named_config(flags)
    cp = flags.context_parallel_size or 1
    tp = flags.tensor_model_parallel_size or 1
    etp = flags.expert_tensor_parallel_size
    return StatedTraining(
        launcher=launcher,
        given=given,
        environment=start.environment,
        notes=(*notes, *sizes.notes),
        problems=tuple(each for each in (pipeline.problem, unpaired) if each is not None),
        config=sizes.config,
        world=start.world,
        tp=tp,
        pp=flags.pipeline_model_parallel_size or 1,
        cp=cp,
        ulysses=_ulysses(flags, cp),
        ep=flags.expert_model_parallel_size or 1,
        etp=None if etp in (None, tp) else etp,
        chunks=pipeline.chunks,
        parts=pipeline.parts,
        schedule=(Schedule.INTERLEAVED if pipeline.chunks > 1 else Schedule.ONE_F_ONE_B).value,
        microbatch=flags.micro_batch_size,
        global_batch=flags.global_batch_size,
        seq_len=flags.seq_length,
        zero_stage=_zero_stage(flags),
        optimizer_copies=flags.num_distributed_optimizer_instances,
        sequence_parallel=flags.sequence_parallel and tp > 1,
        tp_overlap=TpOverlap.CHUNKED if flags.tp_comm_overlap and flags.sequence_parallel and tp > 1 else TpOverlap.EXPOSED,
        expert_overlap=ExpertOverlap.BATCH if flags.overlap_moe_expert_parallel_comm and unpaired is None else None,
        mesh=MeshChoices(
            RankOrder.DP_OUTERMOST if flags.use_tp_pp_dp_mapping else RankOrder.PP_OUTERMOST,
            CpKeys.GATHERED if flags.cp_comm_type == "all_gather" else CpKeys.RING,
        ),
        recompute=recompute,
        stages=stages,
        offload=_offload(flags),
        workload=_workload(flags),
    )


def _unpaired(flags: MegatronFlags, pipeline: _Pipeline, recompute: Recompute) -> str | None:
    """Why Megatron-LM refuses to run exchanges of experts under another micro-batch, None where it does not."""
    if not flags.overlap_moe_expert_parallel_comm:
        return None
    lacks = {
        "expert parallelism": (flags.expert_model_parallel_size or 1) == 1,
        "virtual stages in a pipeline": (flags.pipeline_model_parallel_size or 1) > 1 and pipeline.chunks == 1,
        "no full recomputation": recompute is Recompute.FULL,
        "one layer at most that predicts more tokens": (flags.mtp_num_layers or 0) > 1,
    }
    asked = [name for name, is_lacking in lacks.items() if is_lacking]
    return f"--overlap-moe-expert-parallel-comm asks for {', '.join(asked)}" if asked else None


def _pipeline(flags: MegatronFlags) -> _Pipeline:
    """The parts of the model. Without its number of layers, which --model then says, they are even."""
    pp = flags.pipeline_model_parallel_size or 1
    chunks = flags.num_virtual_stages_per_pipeline_rank or 1
    layers, each = flags.num_layers, flags.num_layers_per_virtual_pipeline_stage
    if layers is None:
        return _Pipeline((), chunks)
    if each is not None and flags.num_virtual_stages_per_pipeline_rank is None:
        chunks, rest = divmod(layers, pp * each)
        if rest:
            return _Pipeline(
                (), 1, f"--num-layers-per-virtual-pipeline-stage {each}: {layers} layers over {pp} stages do not divide"
            )
    if chunks > 1 and pp == 1:
        return _Pipeline((), 1, "virtual stages need --pipeline-model-parallel-size above 1")
    try:
        parts = layers_of_parts(flags, layers, pp, chunks)
    except InvalidInputError as error:
        return _Pipeline((), chunks, error.problem)
    return _Pipeline(parts, max(1, len(parts) // pp))


def _ulysses(flags: MegatronFlags, cp: int) -> int:
    """Ranks of cp that exchange tokens for heads."""
    match flags.cp_comm_type:
        case "a2a":
            return cp
        case "a2a+p2p" if flags.hierarchical_context_parallel_sizes:
            return flags.hierarchical_context_parallel_sizes[0]
        case _:
            return 1


def _zero_stage(flags: MegatronFlags) -> int:
    if flags.use_torch_fsdp2:
        return _FULLY_SHARDED
    if flags.use_megatron_fsdp:
        strategy = flags.data_parallel_sharding_strategy or "no_shard"
        if strategy not in _FSDP_STAGES:
            allowed = ", ".join(_FSDP_STAGES)
            raise InvalidInputError("--data-parallel-sharding-strategy can't be this", given=strategy, allowed=allowed)
        return _FSDP_STAGES[strategy]
    return int(flags.use_distributed_optimizer)


def _recompute(flags: MegatronFlags) -> tuple[Recompute, StageChoices, tuple[str, ...]]:
    """The mode; the layers of a stage that are recomputed whole where not all are, or the modules of all layers; and what was
    taken for granted."""
    if flags.activations_checkpoint_method is not None:
        # The name of full recomputation until 2022.
        return Recompute.FULL, USUAL_STAGE, ()
    granularity = flags.recompute_granularity or ("selective" if flags.recompute_activations else None)
    if granularity is None:
        return Recompute.NONE, USUAL_STAGE, ()
    if granularity == "full":
        # Of each stage, or of each of its virtual stages.
        some = flags.recompute_num_layers if flags.recompute_method == "block" else None
        return Recompute.FULL, USUAL_STAGE.with_layers(some), ()
    return stated_modules(flags.recompute_modules)


def _offload(flags: MegatronFlags) -> Offload:
    """Shares of optimizer states on the host: all, unless the command says how much."""
    if not flags.optimizer_cpu_offload:
        return Offload()
    return Offload(optimizer=1.0 if flags.optimizer_offload_fraction is None else flags.optimizer_offload_fraction)


def _workload(flags: MegatronFlags) -> dict[str, Any]:
    """Fields of the request's workload."""
    precision = DType.BF16 if flags.bf16 else DType.FP16 if flags.fp16 else DType.FP32
    work: dict[str, Any] = {"precision": precision.value}
    if flags.grad_reduce_in_bf16:
        work["gradient_dtype"] = DType.BF16.value
    if flags.fp8_format is not None:
        work["matmul"] = _RECIPES.get(flags.fp8_recipe or "delayed", MatmulRecipe.FP8_DELAYED).value
    if flags.fp4_format is not None:
        work["matmul"] = MatmulRecipe.NVFP4.value
    optimizer = _OPTIMIZERS.get(flags.optimizer or "adam")
    if optimizer is None:
        raise InvalidInputError("--optimizer is not known", given=flags.optimizer, allowed=", ".join(_OPTIMIZERS))
    work["optimizer"] = _SMALL_MOMENTS.get(flags.exp_avg_dtype or "", optimizer).value
    if flags.moe_enable_deepep:
        work["dispatch"] = TokenDispatch.ONCE_A_NODE.value
    if flags.mtp_num_layers is not None:
        work["mtp_layers"] = flags.mtp_num_layers
    stated = _implementation(flags)
    return work | ({"implementation": stated} if stated else {})


def _implementation(flags: MegatronFlags) -> dict[str, Any]:
    """Fields in which the command runs otherwise than the launcher's own profile."""
    stated: dict[str, Any] = {}
    # 0.1 unless told (arguments.py).
    if flags.attention_dropout != 0.0 or flags.hidden_dropout != 0.0:
        stated["dropout"] = Dropout.MASKED.value
    if flags.attention_backend == "unfused":
        stated["attention_kernels"] = AttentionKernels.UNFUSED.value
    if flags.cross_entropy_loss_fusion:
        stated["stated_loss"] = LossKernels.FUSED_IN_PARTS.value
    if flags.defer_embedding_wgrad_compute:
        stated["head_gradients"] = HeadGradients.DEFERRED.value
    if flags.cuda_graph_impl == "transformer_engine":
        stated["host"] = HostPath.CUDA_GRAPHS.value
    # Its FSDP sums gradients in every micro-batch, whatever is stated.
    if not flags.overlap_grad_reduce and _zero_stage(flags) < 2:
        stated["reduction"] = GradientReduction.AFTER_BACKWARD.value
    return stated


# The model of a Megatron-LM command, from its sizes, as the config.json of the family that has such layers.

_VOCABULARIES = {"gpt2bpetokenizer": 50257, "gptsentencepiecetokenizer": 32000, "llama2tokenizer": 32000}
"""Tokens of the tokenizers that are named by their type: GPT-2's merges, Llama-2's pieces."""
_OF_MERGES = "GPT2BPETokenizer"
"""The tokenizer of a file of merges."""
_NULL_TOKENIZER = "nulltokenizer"
"""The tokenizer that adds one token to the size that it is given (megatron/training/tokenizer)."""


@dataclass(frozen=True, slots=True)
class NamedConfig:
    """A config.json, None where the flags do not say enough, and what was taken for granted."""

    config: Mapping[str, Any] | None
    notes: tuple[str, ...] = ()


def named_config(flags: MegatronFlags) -> NamedConfig:
    """Return the config of the model that the flags describe."""
    vocab, notes = _vocabulary(flags)
    layers, hidden, heads = flags.num_layers, flags.hidden_size, flags.num_attention_heads
    if layers is None or hidden is None or heads is None or vocab is None or _is_strange(flags):
        return NamedConfig(None, notes)
    family = _family(flags)
    ffn = flags.ffn_hidden_size or 4 * hidden
    if family == "gpt2":
        positions = flags.max_position_embeddings or flags.seq_length or 1024
        own: dict[str, Any] = {"n_inner": ffn, "max_position_embeddings": positions}
    else:
        own = {
            "intermediate_size": ffn,
            "num_key_value_heads": (flags.num_query_groups or 1) if flags.group_query_attention else heads,
            "head_dim": flags.kv_channels or hidden // heads,
        }
    config = {
        "model_type": family,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        "tie_word_embeddings": not flags.untie_embeddings_and_output_weights,
        **own,
        **_experts(flags, family, ffn),
    }
    return NamedConfig(config, (*notes, f"the model is taken for one of the {family} family, of the command's sizes"))


def _is_strange(flags: MegatronFlags) -> bool:
    """True for a model that no family here has by its flags alone."""
    uneven = flags.moe_layer_freq not in (None, "1")
    gated = flags.swiglu
    return (
        flags.multi_latent_attention
        or flags.moe_shared_expert_intermediate_size is not None
        or uneven
        or flags.window_size is not None
        or flags.squared_relu
        or (flags.num_experts is not None and not gated)
        or (not gated and flags.group_query_attention)
    )


def _family(flags: MegatronFlags) -> str:
    if not flags.swiglu:
        return "gpt2"
    if flags.num_experts is not None:
        return "qwen3_moe" if flags.qk_layernorm else "mixtral"
    if flags.qk_layernorm:
        return "qwen3"
    return "qwen2" if flags.add_qkv_bias else "llama"


def _experts(flags: MegatronFlags, family: str, ffn: int) -> dict[str, Any]:
    if flags.num_experts is None:
        return {}
    width = flags.moe_ffn_hidden_size or ffn
    # Megatron-LM gives a token two experts unless told (--moe-router-topk).
    chosen = {"num_experts_per_tok": flags.moe_router_topk or 2}
    if family == "mixtral":
        return {"num_local_experts": flags.num_experts, "intermediate_size": width, **chosen}
    return {"num_experts": flags.num_experts, "moe_intermediate_size": width, **chosen}


def _vocabulary(flags: MegatronFlags) -> tuple[int | None, tuple[str, ...]]:
    """Tokens of the vocabulary, and what was taken for granted."""
    # Until 2024 files of merges alone meant GPT-2's tokenizer.
    kind = (flags.tokenizer_type or (_OF_MERGES if flags.merge_file else "")).casefold()
    if flags.vocab_size is not None:
        return flags.vocab_size + (kind == _NULL_TOKENIZER), ()
    named = flags.tokenizer_model or ""
    known = catalogue_name_in_words(named, model_names()) if "/" in named and "$" not in named else None
    if known is not None:
        return model(known).dims[VOCAB], (f"the vocabulary is that of {known}, by the tokenizer",)
    if kind in _VOCABULARIES:
        return _VOCABULARIES[kind], (
            f"the vocabulary of {flags.tokenizer_type or _OF_MERGES} has {_VOCABULARIES[kind]:,} tokens",
        )
    return None, ()


# Layers of each part of a pipeline, as Megatron-LM's flags say them.

MOST_LAYERS = 10_000
"""Letters that a layout may stand for."""
_REPEATED = re.compile(r"(?:\(([^()]*)\)|([A-Za-z]))\*([0-9]{1,5})")


def layers_of_parts(flags: MegatronFlags, layers: int, pp: int, chunks: int) -> tuple[int, ...]:
    """Return the decoder layers of each stage or virtual stage, in order of the model.

    ``chunks`` are virtual stages a rank. Raises InvalidInputError for what does not divide.
    """
    if flags.pipeline_model_parallel_layout is not None:
        return _of_layout(flags.pipeline_model_parallel_layout, layers, pp)
    first, last = flags.decoder_first_pipeline_num_layers, flags.decoder_last_pipeline_num_layers
    if first is not None or last is not None:
        return _of_ends(first, last, layers, pp)
    ends = flags.account_for_embedding_in_pipeline_split, flags.account_for_loss_in_pipeline_split
    each, rest = divmod(layers + sum(ends), pp * chunks)
    if rest:
        raise InvalidInputError(
            f"--num-layers {layers}: {layers + sum(ends)} layers do not divide by {pp * chunks} stages or virtual stages"
        )
    parts = [each] * (pp * chunks)
    parts[0] -= int(ends[0])
    parts[-1] -= int(ends[1])
    return tuple(parts)


def _of_ends(first: int | None, last: int | None, layers: int, pp: int) -> tuple[int, ...]:
    between = pp - (first is not None) - (last is not None)
    left = layers - (first or 0) - (last or 0)
    if between < 1 or left < between or left % between:
        raise InvalidInputError(f"{left} layers do not divide by the {between} stages between the first and the last")
    ends = ([] if first is None else [first]), ([] if last is None else [last])
    return (*ends[0], *([left // between] * between), *ends[1])


def _of_layout(text: str, layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each part: E embedding, t decoder layer, m prediction layer, L loss, | next part, ``(...)*n`` repeated."""
    flat = re.sub(r"[,\s]", "", text)
    while (found := _REPEATED.search(flat)) is not None:
        inner, times = found[2] if found[1] is None else found[1], int(found[3])
        if len(inner) * times + len(flat) > MOST_LAYERS:
            raise InvalidInputError(f"--pipeline-model-parallel-layout: more than {MOST_LAYERS:,} layers", given=text)
        flat = flat[: found.start()] + inner * times + flat[found.end() :]
    parts = tuple(part.count("t") for part in flat.split("|"))
    well_made = re.fullmatch(r"[EtmL|]*", flat) and flat.count("E") == flat.count("L") == 1
    if not well_made or sum(parts) != layers or len(parts) % pp:
        raise InvalidInputError(
            f"--pipeline-model-parallel-layout: {sum(parts)} layers in {len(parts)} parts; the model has {layers} layers, "
            f"and parts must be a multiple of {pp} stages",
            given=text,
        )
    return parts
