"""A plan as arguments of Megatron-LM's pretrain_gpt.py; Megatron-Bridge and NeMo put them into words of their own.

Rules are those of megatron/training/arguments.py (validate_args) and core/transformer/transformer_config.py.
"""

from __future__ import annotations

from meshwright.app.launching.launchers.megatron_lm import MEGATRON_LM
from meshwright.app.launching.parts.command import (
    Words,
    chunks_a_rank,
    command_text,
    flag,
    model_parts,
    node_assumptions,
    torchrun,
)
from meshwright.app.launching.parts.export import Export
from meshwright.app.launching.parts.implemented import not_as_stated, stated_by
from meshwright.app.launching.parts.launchable import recompute_differs, recompute_mode
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.model.formats import MatmulRecipe, SavedFormat
from meshwright.costmodels.model.implementation import (
    AttentionKernels,
    Dropout,
    GradientReduction,
    HeadGradients,
    HostPath,
    LossKernels,
)
from meshwright.costmodels.network.token_dispatch import DispatchFormat, TokenDispatch
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan, pipeline_plan
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import Axes
from meshwright.solver.problem.choices import Launcher, Recompute, TpOverlap
from meshwright.solver.problem.declared.cp_keys import CpKeys
from meshwright.solver.problem.declared.expert_overlap import ExpertOverlap
from meshwright.solver.problem.declared.rank_order import RankOrder
from meshwright.solver.problem.graph import Hyperparameters, RotaryScaling, RotaryScalingKind, RouterRule, RouterScore
from meshwright.solver.problem.launchers.decoders import (
    DecoderShape,
    FeedForward,
    LatentShape,
    MixtureShape,
    Norm,
    Positions,
    decoder_shape,
    is_layer,
)
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload

VERSION = "core 0.16 to 0.20"
MAX_VOCAB_MULTIPLE = 128
"""Default of --make-vocab-size-divisible-by: the vocabulary is padded to a multiple of this times tp."""

_SERIAL_LAUNCHES = ("CUDA_DEVICE_MAX_CONNECTIONS", "1")
"""validate_args asks for it beside tensor or context parallelism before Blackwell; its FSDP refuses it."""


_SMALL_MOMENTS = (Optimizer.ADAMW_8BIT, Optimizer.ADAMW_BF16)
"""The optimizers with small moments. Megatron-LM keeps those in its precision-aware optimizer, which is a distributed one."""


def say(field: str, *values: object) -> Words:
    """Return a flag of Megatron-LM by the field that it says."""
    return flag(MEGATRON_LM.name(field), *values)


def export_plan(answer: Plan, request: TrainingRequest) -> Export:
    """Arguments for the model, the parallelism and the memory choices; data and hyperparameters are stand-ins."""
    plan = pipeline_plan(answer)
    workload = request.workload
    shape = decoder_shape(request.model)
    return Export(
        launcher=Launcher.MEGATRON_LM,
        version=VERSION,
        command=command_text(
            environment=environment(plan),
            parts=[*torchrun(request, plan.devices), ("pretrain_gpt.py",), *plan_words(plan, request, shape)],
        ),
        inexpressible=inexpressible(plan, workload, shape),
        assumptions=_assumptions(shape, plan, request),
    )


def environment(plan: PipelinePlan) -> tuple[tuple[str, str], ...]:
    """Return the variables beside which Megatron-Core runs a plan."""
    serial = (plan.axes.tp > 1 or plan.axes.cp > 1) and plan.stages[0].zero_stage < 2
    return (_SERIAL_LAUNCHES,) if serial else ()


def plan_words(plan: PipelinePlan, request: TrainingRequest, shape: DecoderShape) -> list[Words]:
    """Return the flags of a plan, its model and its work."""
    workload = request.workload
    return [
        *_model_words(shape, workload),
        *_latent_words(shape.latent),
        *_mixture_words(shape.mixture, plan, workload.dispatch),
        *hyperparameter_words(request.model.hyperparameters, shape),
        *_vocabulary_words(shape.vocab, plan.axes.tp),
        *_parallelism_words(plan, request, shape.mtp_layers),
        *_batch_words(plan, workload),
        *_recompute_words(plan, shape),
        *_state_words(plan, workload),
        *_offload_words(plan, workload),
        *_optimizer_words(plan, workload),
        *_implementation_words(plan, workload, has_experts=shape.mixture is not None),
    ]


def inexpressible(plan: PipelinePlan, workload: TrainingWorkload, shape: DecoderShape) -> tuple[str, ...]:
    """Return what of a plan Megatron-Core does otherwise, and how."""
    return (
        *recompute_differs(plan),
        *_inexpressible(shape, plan, workload),
        *_not_implemented(plan, workload, has_experts=shape.mixture is not None),
    )


def part_layers(plan: PipelinePlan, request: TrainingRequest) -> tuple[int, ...]:
    """Decoder layers of each stage or virtual stage, in order of the model; embedding and head not counted."""
    return tuple(sum(span.count for span in part if is_layer(request.model.block(span.block))) for part in model_parts(plan))


def pipeline_layout(layers: tuple[int, ...], *, mtp_layers: int = 0) -> str:
    """--pipeline-model-parallel-layout: E embedding, t decoder layer, m one that predicts tokens, L loss, | next stage, *n
    repeated."""
    stages = ["" if n == 0 else "t" if n == 1 else f"t*{n}" for n in layers]
    return f"E{'|'.join(stages)}{'m' * mtp_layers}L"


def _model_words(shape: DecoderShape, workload: TrainingWorkload) -> list[Words]:
    seq_len = workload.seq_len
    words = [
        say("num_layers", shape.layers),
        say("hidden_size", shape.hidden),
        say("ffn_hidden_size", shape.ffn),
        (*say("num_attention_heads", shape.heads), *say("kv_channels", shape.head_dim)),
        (*say("seq_length", seq_len), *say("max_position_embeddings", shape.n_positions or seq_len)),
        say("normalization", "RMSNorm" if shape.norm is Norm.RMS else "LayerNorm"),
    ]
    if shape.kv_heads < shape.heads:
        words.append((*say("group_query_attention"), *say("num_query_groups", shape.kv_heads)))
    position = {Positions.ROTARY: "rope", Positions.LEARNED: "learned_absolute", Positions.ELSEWHERE: "none"}
    words.append(say("position_embedding_type", position[shape.positions]))
    function = {FeedForward.SWIGLU: "swiglu", FeedForward.GEGLU: "swiglu", FeedForward.SQUARED_RELU: "squared-relu"}.get(
        shape.gate
    )
    words += [] if function is None else [flag(function)]
    if not shape.linear_bias:
        words.append(say("disable_bias_linear"))
        words += [say("add_qkv_bias")] if shape.qkv_bias else []
    if shape.qk_norm:
        words.append(say("qk_layernorm"))
    if not shape.tied:
        words.append(say("untie_embeddings_and_output_weights"))
    if shape.window is not None:
        words.append(say("window_size", f"{shape.window - 1},0"))
    if shape.mtp_layers:
        words.append(say("mtp_num_layers", shape.mtp_layers))
    return [*words, _dropout_words(workload)]


def _latent_words(latent: LatentShape | None) -> list[Words]:
    if latent is None:
        return []
    queries = flag("q-lora-rank", latent.q_rank) if latent.q_rank is not None else ()
    return [
        (*say("multi_latent_attention"), *queries, *flag("kv-lora-rank", latent.kv_rank)),
        (*flag("qk-head-dim", latent.nope_dim), *flag("qk-pos-emb-head-dim", latent.rope_dim)),
        flag("v-head-dim", latent.v_dim),
    ]


def _mixture_words(mixture: MixtureShape | None, plan: PipelinePlan, dispatch: TokenDispatch) -> list[Words]:
    """Experts, their ranks, and how tokens get there; tp splits an expert as it splits a dense network, or not at all."""
    if mixture is None:
        return []
    words = [
        (*say("num_experts", mixture.experts), *say("moe_router_topk", mixture.top_k)),
        (*say("moe_ffn_hidden_size", mixture.ffn), *flag("moe-grouped-gemm")),
        say("expert_model_parallel_size", plan.axes.ep),
        say("expert_tensor_parallel_size", plan.axes.etp or plan.axes.tp),
        _dispatch_words(plan.axes, dispatch),
    ]
    if mixture.groups > 1:
        words.append((*flag("moe-router-num-groups", mixture.groups), *flag("moe-router-group-topk", mixture.top_groups)))
    if not all(mixture.in_layer):
        words.append(say("moe_layer_freq", f"[{','.join(str(int(has)) for has in mixture.in_layer)}]"))
    if mixture.shared_ffn is not None:
        words.append(say("moe_shared_expert_intermediate_size", mixture.shared_ffn))
        words += [flag("moe-shared-expert-gate")] if mixture.shared_gate else []
    return words


def _dispatch_words(axes: Axes, dispatch: TokenDispatch) -> Words:
    """An all-to-all of copies, or DeepEP, which takes the router's probabilities in fp32 alone."""
    if axes.ep == 1 or dispatch is TokenDispatch.COPIES:
        return say("moe_token_dispatcher_type", "alltoall")
    return (*say("moe_token_dispatcher_type", "flex"), *say("moe_enable_deepep"), *flag("moe-router-dtype", "fp32"))


def vocabulary_multiple(vocab: int, tp: int) -> int:
    """The largest power of two up to 128 that lets tp divide the vocabulary without padding; 128 where padding is due."""
    multiple = MAX_VOCAB_MULTIPLE
    while multiple > 1 and vocab % (multiple * tp):
        multiple //= 2
    return multiple if vocab % (multiple * tp) == 0 else MAX_VOCAB_MULTIPLE


def _vocabulary_words(vocab: int, tp: int) -> list[Words]:
    # NullTokenizer adds one token to the size it is given (megatron/training/tokenizer).
    return [
        (*flag("mock-data"), *say("tokenizer_type", "NullTokenizer"), *say("vocab_size", vocab - 1)),
        flag("make-vocab-size-divisible-by", vocabulary_multiple(vocab, tp)),
    ]


def _parallelism_words(plan: PipelinePlan, request: TrainingRequest, mtp_layers: int) -> list[Words]:
    axes = plan.axes
    assert axes is not None
    words = [say("tensor_model_parallel_size", axes.tp), say("pipeline_model_parallel_size", axes.pp)]
    if plan.sequence_parallel:
        words.append(say("sequence_parallel"))
    if plan.tp_overlap is TpOverlap.CHUNKED:
        words.append(say("tp_comm_overlap"))
    if plan.pipelines.expert_overlap is ExpertOverlap.BATCH:
        words.append(say("overlap_moe_expert_parallel_comm"))
    if axes.cp > 1:
        words.append((*say("context_parallel_size", axes.cp), *_context_words(plan)))
    if plan.pipelines.rank_order is RankOrder.DP_OUTERMOST and axes.pp > 1 and axes.dp > 1:
        words.append(say("use_tp_pp_dp_mapping"))
    layers = part_layers(plan, request)
    # The layout's parts over the stages are the virtual stages, so it stands for interleaving, too.
    if len(set(layers)) > 1 or chunks_a_rank(plan) > 1:
        words.append(say("pipeline_model_parallel_layout", pipeline_layout(layers, mtp_layers=mtp_layers)))
    return words


def _context_words(plan: PipelinePlan) -> Words:
    """Keys and values in a ring or gathered, an exchange of heads (Ulysses), or exchanges inside a ring, sizes from inner to
    outer."""
    axes = plan.axes
    if axes.ulysses == 1:
        return say("cp_comm_type", "all_gather" if plan.pipelines.cp_keys is CpKeys.GATHERED else "p2p")
    if axes.ulysses == axes.cp:
        return say("cp_comm_type", "a2a")
    sizes = say("hierarchical_context_parallel_sizes", axes.ulysses, axes.cp // axes.ulysses)
    return (*say("cp_comm_type", "a2a+p2p"), *sizes)


def _batch_words(plan: PipelinePlan, workload: TrainingWorkload) -> list[Words]:
    return [(*say("micro_batch_size", plan.microbatch.size), *say("global_batch_size", workload.global_batch))]


def _recompute_words(plan: PipelinePlan, shape: DecoderShape) -> list[Words]:
    match recompute_mode(plan):
        case Recompute.NONE:
            return []
        case Recompute.FINE_GRAINED:
            modules = ["layernorm", *(["moe_act"] if shape.mixture else []), *(["mla_up_proj"] if shape.latent else [])]
            chosen = plan.stages[0].recompute_modules
            modules = modules if chosen is None else chosen.split("+")
            return [(*say("recompute_granularity", "selective"), *say("recompute_modules", *modules))]
        case Recompute.SELECTIVE:
            return [(*say("recompute_granularity", "selective"), *say("recompute_modules", "core_attn", "layernorm"))]
        case Recompute.FULL:
            some = plan.stages[0].recompute_layers
            if some is not None:
                block = (*say("recompute_method", "block"), *say("recompute_num_layers", some))
                return [(*say("recompute_granularity", "full"), *block)]
            uniform = (*say("recompute_method", "uniform"), *say("recompute_num_layers", 1))
            return [(*say("recompute_granularity", "full"), *uniform)]


def _state_words(plan: PipelinePlan, workload: TrainingWorkload) -> list[Words]:
    """ZeRO-1 is the distributed optimizer, ZeRO-2 and 3 are Megatron-FSDP; gradients travel when the plan says so."""
    axes, zero_stage = plan.axes, plan.stages[0].zero_stage
    assert axes is not None
    of_experts = axes.dp * axes.cp * axes.tp // ((axes.etp or axes.tp) * axes.ep)
    if axes.dp * axes.cp == 1 and not (zero_stage and of_experts > 1):
        # What lies on the host, and moments of few bits, belong to a distributed optimizer, of one rank, too.
        distributed = plan.stages[0].offload.optimizer or plan.trained_by(workload) in _SMALL_MOMENTS
        return [say("use_distributed_optimizer")] if distributed else []
    gradients, weights = _overlap_words(plan, workload)
    words = [*gradients, say("use_distributed_optimizer"), *weights] if zero_stage >= 1 else [*gradients]
    shards = plan.stages[0].shard_ranks
    if shards is not None:
        # Copies of the optimizer, each sharded over so many neighbours (parallel_state's intra_partial_data_parallel_size).
        words.append(say("num_distributed_optimizer_instances", axes.dp * axes.cp // shards))
    if zero_stage >= 2:
        strategy = "optim_grads" if zero_stage == 2 else "optim_grads_params"
        words += [(*say("use_megatron_fsdp"), *say("data_parallel_sharding_strategy", strategy))]
        words += [flag("ckpt-format", "fsdp_dtensor"), flag("no-gradient-accumulation-fusion")]
    return words


def _offload_words(plan: PipelinePlan, workload: TrainingWorkload) -> list[Words]:
    """Shares of the distributed optimizer's states on the host, updated there."""
    share = plan.stages[0].offload.optimizer
    if not share:
        return []
    words = [(*say("optimizer_cpu_offload"), *say("optimizer_offload_fraction", share))]
    words.append(flag("overlap-cpu-optimizer-d2h-h2d"))
    small = plan.trained_by(workload) in _SMALL_MOMENTS
    return words if small else [*words, flag("use-precision-aware-optimizer")]


def _optimizer_words(plan: PipelinePlan, workload: TrainingWorkload) -> list[Words]:
    optimizer = {
        Optimizer.ADAMW: say("optimizer", "adam"),
        Optimizer.SGD_MOMENTUM: (*say("optimizer", "sgd"), *flag("sgd-momentum", 0.9)),
        Optimizer.MUON: (*say("optimizer", "muon"), *flag("ckpt-format", "torch")),
        Optimizer.ADAMW_8BIT: (
            *say("optimizer", "adam"),
            *flag("use-precision-aware-optimizer"),
            *say("exp_avg_dtype", "fp8"),
            *flag("exp-avg-sq-dtype", "fp8"),
        ),
        Optimizer.ADAMW_BF16: (
            *say("optimizer", "adam"),
            *flag("use-precision-aware-optimizer"),
            *say("exp_avg_dtype", "bf16"),
            *flag("exp-avg-sq-dtype", "bf16"),
        ),
    }
    words = [optimizer[plan.trained_by(workload)], (*flag("lr", "1e-4"), *flag("train-iters", 100))]
    if workload.precision in (DType.BF16, DType.FP16):
        words.append(flag(workload.precision.value))
    if workload.precision is DType.BF16 and workload.gradient_dtype is DType.BF16:
        words.append(say("grad_reduce_in_bf16"))
    if workload.matmul in _RECIPES:
        words.append(_RECIPES[workload.matmul])
    return words


_RECIPES = {
    MatmulRecipe.FP8_DELAYED: (*say("fp8_format", "hybrid"), *say("fp8_recipe", "delayed")),
    MatmulRecipe.FP8_CURRENT: (*say("fp8_format", "hybrid"), *say("fp8_recipe", "tensorwise")),
    MatmulRecipe.FP8_BLOCKWISE: (*say("fp8_format", "e4m3"), *say("fp8_recipe", "blockwise")),
    MatmulRecipe.MXFP8: (*say("fp8_format", "e4m3"), *say("fp8_recipe", "mxfp8")),
    MatmulRecipe.NVFP4: (*say("fp4_format", "e2m1"), *flag("fp4-recipe", "nvfp4")),
}
"""Number formats of matrix products; weights are kept in 16 bits and cast, since which of them may live in fp8 depends on
the version."""


def _inexpressible(shape: DecoderShape, plan: PipelinePlan, workload: TrainingWorkload) -> tuple[str, ...]:
    lost = [f"{oddity}: Megatron-Core's GPT layer can't: give a layer of your own (--spec)" for oddity in shape.oddities]
    stand_in = {FeedForward.GEGLU: "swiglu", FeedForward.RELU: "gelu"}.get(shape.gate)
    if stand_in is not None:
        lost.append(f"activation function {shape.gate.value}: no flag; launched as {stand_in}, of the same size and work")
    if shape.positions is Positions.ELSEWHERE:
        lost.append("positions that are neither rotary nor learned (ALiBi): launched without any")
    if shape.mtp_layers and shape.positions is Positions.LEARNED:
        lost.append(
            "layers that predict more tokens beside learned positions: Megatron-Core knows them with rotary ones or none"
        )
    if shape.mtp_layers > 1 and plan.pipelines.expert_overlap is ExpertOverlap.BATCH:
        lost.append("exchanges of experts overlapped beside two or more layers that predict tokens: Megatron-Core takes one")
    padded = -shape.vocab % (vocabulary_multiple(shape.vocab, plan.axes.tp) * plan.axes.tp)
    if padded:
        lost.append(f"a vocabulary of {shape.vocab}: padded by {padded} tokens so that tp {plan.axes.tp} divides it")
    if workload.gradient_dtype is DType.FP16 or (
        workload.gradient_dtype is DType.BF16 and workload.precision is not DType.BF16
    ):
        lost.append(f"{workload.gradient_dtype.value} gradients beside {workload.precision.value} weights: kept in fp32")
    optimizer = plan.trained_by(workload)
    if optimizer in _SMALL_MOMENTS and plan.stages[0].zero_stage == 0 and plan.axes.dp * plan.axes.cp > 1:
        bits = 8 if optimizer is Optimizer.ADAMW_8BIT else 16
        lost.append(
            f"moments of {bits} bits without a distributed optimizer: --use-precision-aware-optimizer needs one; use ZeRO-1"
        )
    if workload.saved_activations is SavedFormat.FP8:
        lost.append(
            "saved activations in fp8: Transformer Engine keeps inputs of fp8 products so, but attention's output and the "
            "inputs of activation functions in 16 bits, which takes more memory than planned"
        )
    if workload.dispatch_format is DispatchFormat.FP8 and plan.axes.ep > 1:
        lost.append("tokens in fp8 on their way to experts: Megatron-Core's dispatchers send them in 16 bits")
    if workload.matmul is MatmulRecipe.FP8_ROWWISE:
        lost.append("fp8 products with a scale for each row: Megatron-Core has no such recipe; launched without fp8")
    return tuple(lost)


def _assumptions(shape: DecoderShape, plan: PipelinePlan, request: TrainingRequest) -> tuple[str, ...]:
    said = [
        *node_assumptions(request, plan.devices),
        "run in a checkout of Megatron-LM, with Transformer Engine",
        "--mock-data, --tokenizer-type, --lr and --train-iters are stand-ins that make it start: put your own there",
    ]
    if plan.pipelines.expert_overlap is ExpertOverlap.BATCH:
        said.append("--overlap-moe-expert-parallel-comm is planned with PyTorch 2.6 or newer, which it asks for")
    if plan.tp_overlap is TpOverlap.CHUNKED:
        said.append(
            "--tp-comm-overlap is planned with Transformer Engine's own choice of methods; it refuses what has buffers of "
            "another size, as the last, smaller batch of a validation set"
        )
    said += hyperparameter_notes(request.model.hyperparameters, shape)
    workload = request.workload
    if workload.matmul in _RECIPES:
        said.append(
            "the plan counts fp8 primary weights (--fp8-param-gather): without them each device holds fp8 copies as well"
        )
    if plan.axes.pp > 1:
        virtual = chunks_a_rank(plan)
        if virtual == 1:
            said.append("without virtual stages Megatron-LM runs 1F1B, as planned")
        else:
            said.append(f"the layout has {virtual} virtual stages a rank, with which Megatron-LM runs interleaved 1F1B")
    return tuple(said)


# Megatron-LM's words for what a model's config says beside its sizes: rotary positions, the norms' epsilon, the router's rule.
#
# Flags and defaults are those of megatron/training/arguments.py; the router's are those of core/transformer/moe/moe_utils.py.

_LLAMA3 = (1.0, 4.0, 8192)
"""Ends of the blend and first length of --use-rope-scaling, which has a flag for the factor alone (core/models/common/
embeddings/rotary_pos_embedding.py)."""


def hyperparameter_words(stated: Hyperparameters | None, shape: DecoderShape) -> list[Words]:
    """Return the flags for all that is stated and has one."""
    if stated is None:
        return []
    words = [] if stated.norm_epsilon is None else [flag("norm-epsilon", f"{stated.norm_epsilon:g}")]
    if shape.positions is Positions.ROTARY:
        words += _rotary_words(stated, shape)
    if shape.mixture is not None and stated.router is not None:
        words += _router_words(stated.router)
    return words


def hyperparameter_notes(stated: Hyperparameters | None, shape: DecoderShape) -> tuple[str, ...]:
    """Return what the reader must add, since the model's source does not say it or Megatron-LM has no flag for it."""
    said = stated or Hyperparameters()
    notes = []
    if shape.positions is Positions.ROTARY:
        if _base(said) is None:
            notes.append("the request does not state one rotary base: add --rotary-base (and scaling) as the model has it")
        if said.rotary_scaling is not None and not _scaling_words(said.rotary_scaling, shape):
            notes.append(
                f"the model stretches its rotary positions ({_in_words(said.rotary_scaling)}), for which there is no flag: "
                "launched without, as models are trained before they are stretched"
            )
    if shape.mixture is not None:
        if said.router is None:
            notes.append(
                "the request holds the router's sizes, not its rule: add --moe-router-score-function and balancing as the "
                "model has them"
            )
        elif not _is_expressible(said.router, shape.mixture.top_k):
            notes.append("the router's weights of experts are scaled in a way that Megatron-LM's are not: check its rule")
        notes.append("loads of experts are taken for even")
    return tuple(notes)


def _base(stated: Hyperparameters) -> int | None:
    """The rotary base as --rotary-base takes it, a whole number."""
    base = stated.rotary_base
    return None if base is None or base != int(base) else int(base)


def _rotary_words(stated: Hyperparameters, shape: DecoderShape) -> list[Words]:
    base = _base(stated)
    words = [] if base is None else [flag("rotary-base", base)]
    if stated.rotary_share is not None and stated.rotary_share != 1 and shape.latent is None:
        words.append(flag("rotary-percent", f"{stated.rotary_share:g}"))
    return words if stated.rotary_scaling is None else words + _scaling_words(stated.rotary_scaling, shape)


def _scaling_words(scaling: RotaryScaling, shape: DecoderShape) -> list[Words]:
    """llama3's rule with its published ends, and YaRN of latent attention; none for any other."""
    factor = scaling.factor
    if factor is None:
        return []
    if shape.latent is not None and scaling.kind is RotaryScalingKind.YARN:
        words = [flag("rotary-scaling-factor", f"{factor:g}")]
        words += [] if scaling.mscale is None else [flag("mscale", f"{scaling.mscale:g}")]
        words += [] if scaling.mscale_all_dim is None else [flag("mscale-all-dim", f"{scaling.mscale_all_dim:g}")]
        return [tuple(word for words_of_one in words for word in words_of_one)]
    ends = (scaling.low_frequency, scaling.high_frequency, scaling.original_positions)
    if shape.latent is None and scaling.kind is RotaryScalingKind.LLAMA3 and ends == _LLAMA3:
        return [(*flag("use-rope-scaling"), *flag("rope-scaling-factor", f"{factor:g}"))]
    return []


def _in_words(scaling: RotaryScaling) -> str:
    return scaling.kind.value if scaling.factor is None else f"{scaling.kind.value}, {scaling.factor:g} times"


def _router_words(rule: RouterRule) -> list[Words]:
    words = [flag("moe-router-score-function", rule.score.value)]
    before = rule.score is RouterScore.SOFTMAX and not rule.normalised
    words += [flag("moe-router-pre-softmax")] if before else []
    if rule.scale != 1 and (before or rule.score is RouterScore.SIGMOID):
        words.append(flag("moe-router-topk-scaling-factor", f"{rule.scale:g}"))
    if rule.has_bias and rule.score is RouterScore.SIGMOID:
        words.append(flag("moe-router-enable-expert-bias"))
    elif rule.auxiliary_loss:
        words.append(flag("moe-aux-loss-coeff", f"{rule.auxiliary_loss:g}"))
    return words


def _is_expressible(rule: RouterRule, top_k: int) -> bool:
    """Return True if Megatron-LM weighs experts so: a softmax over the chosen has no factor, sigmoids are weighed anew."""
    if rule.score is RouterScore.SOFTMAX:
        return not rule.normalised or rule.scale == 1
    return rule.normalised or top_k == 1


# The implementation that a request states, as flags.

_DROPOUT = 0.1
"""Default of --attention-dropout and --hidden-dropout: masks take the same memory at any rate above 0."""


def _dropout_words(workload: TrainingWorkload) -> Words:
    """Dropout of attention and of what layers add: none, unless masks were planned."""
    rate = _DROPOUT if stated_by(workload, Launcher.MEGATRON_LM).dropout is Dropout.MASKED else 0
    return (*say("attention_dropout", rate), *say("hidden_dropout", rate))


def _implementation_words(plan: PipelinePlan, workload: TrainingWorkload, *, has_experts: bool) -> list[Words]:
    """Flags of Megatron-LM that make a stated implementation true."""
    stated = stated_by(workload, Launcher.MEGATRON_LM)
    words: list[Words] = []
    if stated.host is HostPath.CUDA_GRAPHS and _no_graphs(plan) is None:
        # Whole layers, but for experts: how many tokens each of them gets is known on the host first.
        scope = flag("cuda-graph-scope", "attn") if has_experts else ()
        words.append((*say("cuda_graph_impl", "transformer_engine"), *scope))
    if stated.attention_kernels is AttentionKernels.UNFUSED:
        words.append(say("attention_backend", "unfused"))
    if stated.loss is LossKernels.FUSED_IN_PARTS:
        words.append(say("cross_entropy_loss_fusion"))
    if stated.head_gradients is HeadGradients.DEFERRED and _defers(plan):
        words.append(say("defer_embedding_wgrad_compute"))
    return words


def _overlap_words(plan: PipelinePlan, workload: TrainingWorkload) -> tuple[tuple[Words, ...], tuple[Words, ...]]:
    """Flags by which the gradients of several ranks travel beside passes, and new weights of a sharded optimizer; without them
    they travel in one piece after the backward pass."""
    waits = stated_by(workload, Launcher.MEGATRON_LM).reduction is GradientReduction.AFTER_BACKWARD
    if waits and plan.stages[0].zero_stage < 2:
        return (), ()
    # Its FSDP sums gradients in every micro-batch, whatever is stated.
    return (say("overlap_grad_reduce"),), (flag("overlap-param-gather"),)


def _not_implemented(plan: PipelinePlan, workload: TrainingWorkload, *, has_experts: bool) -> tuple[str, ...]:
    """The parts of a stated implementation that Megatron-LM's flags don't say."""
    stated = stated_by(workload, Launcher.MEGATRON_LM)
    said = {"dropout"}
    if stated.reduction is GradientReduction.AFTER_BACKWARD:
        said.add("reduction")
    lost = []
    if stated.host is HostPath.CUDA_GRAPHS:
        said.add("host")
        why = _no_graphs(plan)
        if why is not None:
            lost.append(f"implementation.host: cuda-graphs is planned; layers are not captured beside {why}: launched without")
        elif has_experts:
            lost.append(
                "implementation.host: cuda-graphs is planned for whole layers; Megatron-Core captures attention alone where a "
                "layer has experts, whose kernels are launched one by one"
            )
    if stated.attention_kernels is AttentionKernels.UNFUSED:
        said.add("attention_kernels")
    if stated.loss is LossKernels.FUSED_IN_PARTS:
        said.add("stated_loss")
    if stated.head_gradients is HeadGradients.DEFERRED:
        said.add("head_gradients")
        if not _defers(plan):
            lost.append(
                "implementation.head_gradients: deferred is planned; --defer-embedding-wgrad-compute needs a pipeline and "
                "fused accumulation of gradients: launched without"
            )
    general = not_as_stated(workload, Launcher.MEGATRON_LM, said=said, instead="nothing says so, and Megatron-Core's own is")
    return (*lost, *general)


def _no_graphs(plan: PipelinePlan) -> str | None:
    """The part of a plan beside which layers are not captured (validate_args refuses full recompute with CUDA graphs)."""
    if recompute_mode(plan) is Recompute.FULL:
        return "full recompute"
    # Its FSDP gathers and frees a layer's weights around each pass: no graph finds them where they were.
    return "Megatron-FSDP" if plan.stages[0].zero_stage >= 2 else None


def _defers(plan: PipelinePlan) -> bool:
    """True if weight gradients of the head may wait (ModelParallelConfig asks for a pipeline and for fused accumulation, which
    Megatron-FSDP goes without)."""
    return plan.axes.pp > 1 and plan.stages[0].zero_stage < 2
