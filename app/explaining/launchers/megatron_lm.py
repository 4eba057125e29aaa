"""The command of a Megatron-LM run, in the words of plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.app.explaining.launchers.megatron_model import named_config
from meshwright.app.explaining.launchers.pipeline_layout import layers_of_parts
from meshwright.app.explaining.start import Start
from meshwright.app.explaining.stated import StatedTraining
from meshwright.app.launch_flags.megatron_lm import MEGATRON_LM, MegatronFlags
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.memory.offload import Offload
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.model.implementation import (
    AttentionKernels,
    Dropout,
    GradientReduction,
    HeadGradients,
    HostPath,
    LossKernels,
)
from meshwright.costmodels.model.low_precision import MatmulRecipe
from meshwright.costmodels.network.token_dispatch import TokenDispatch
from meshwright.costmodels.pipeline import Schedule
from meshwright.costmodels.units import DType
from meshwright.solver.problem.carried_choices import MeshChoices, StageChoices
from meshwright.solver.problem.choices import Launcher, Recompute, TpOverlap
from meshwright.solver.problem.declared.rank_order import RankOrder

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


def read_megatron(start: Start) -> StatedTraining:
    """Return what the flags behind ``pretrain_gpt.py`` state; raises InvalidInputError for a value that can't be."""
    read = MEGATRON_LM.read(start.words)
    flags = MegatronFlags(**read.fields)
    pipeline = _pipeline(flags)
    recompute, layers, notes = _recompute(flags)
    sizes = named_config(flags)
    cp = flags.context_parallel_size or 1
    tp = flags.tensor_model_parallel_size or 1
    etp = flags.expert_tensor_parallel_size
    return StatedTraining(
        launcher=Launcher.MEGATRON_LM,
        given=read.given,
        environment=start.environment,
        notes=(*notes, *sizes.notes),
        problems=() if pipeline.problem is None else (pipeline.problem,),
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
        mesh=MeshChoices(RankOrder.DP_OUTERMOST if flags.use_tp_pp_dp_mapping else RankOrder.PP_OUTERMOST),
        recompute=recompute,
        stages=StageChoices(recompute_layers=layers),
        offload=_offload(flags),
        workload=_workload(flags),
    )


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


def _recompute(flags: MegatronFlags) -> tuple[Recompute, int | None, tuple[str, ...]]:
    """The mode, the layers of a stage that are recomputed whole where not all are, and what was taken for granted."""
    if flags.activations_checkpoint_method is not None:
        # The name of full recomputation until 2022.
        return Recompute.FULL, None, ()
    granularity = flags.recompute_granularity or ("selective" if flags.recompute_activations else None)
    if granularity is None:
        return Recompute.NONE, None, ()
    if granularity == "full":
        # Of each stage, or of each of its virtual stages.
        return Recompute.FULL, flags.recompute_num_layers if flags.recompute_method == "block" else None, ()
    modules = flags.recompute_modules or ("core_attn",)
    if "core_attn" in modules:
        return Recompute.SELECTIVE, None, _beside(modules, ("core_attn", "layernorm"))
    return Recompute.FINE_GRAINED, None, _beside(modules, ("layernorm", "moe_act", "mla_up_proj"))


def _beside(modules: Sequence[str], planned: Sequence[str]) -> tuple[str, ...]:
    """Modules that are recomputed and that no mode has."""
    others = [module for module in modules if module not in planned]
    return (f"recomputed modules that no figure takes into account: {', '.join(others)}",) if others else ()


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
