"""The checker's own copy of what launchers and serving engines can start, written down apart from the search's facts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Literal

from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.problem.choices import Launcher


class Layers(Enum):
    """The parts of a model's layers."""

    HAND_WRITTEN = auto()
    """Kernels for whole operators: Megatron-LM's."""
    MODULES = auto()
    """PyTorch modules that autograd takes apart: DeepSpeed's and torchtitan's."""
    COMPILED = auto()
    """The same compiled, and their loss: torchtitan's where it cuts products into chunks, which only its compiler does."""
    OTHER = auto()
    """Statements of a request on its own framework, which no launcher runs: the checker knows the least that it keeps."""


class Of(Enum):
    """The part of the residual stream that a buffer has the size of."""

    ALL_RANKS = auto()
    RANK = auto()
    """One tp rank's share."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """Buffers of the residual stream's size, or of a part, that stay allocated beside chunked products."""

    count: int
    of: Of


USERBUFFERS = Buffers(12, Of.ALL_RANKS)
"""Tensors of a layer that Transformer Engine's initialize_ub allocates whole, one for each product and pass."""


@dataclass(frozen=True, slots=True)
class CutLimits:
    """Demands of a launcher where products over tp are cut into chunks.

    highest_zero      ZeRO stage up to which it does so
    scattered_parts   parts of a product's output, each of which is scattered over all tp ranks
    held              buffers that it holds for them
    """

    highest_zero: int
    scattered_parts: int
    held: Buffers


@dataclass(frozen=True, slots=True)
class TrainerLimits:
    """The limits of a launcher's own checks of training plans, and the form in which its framework keeps what operators save.

    zero_with_pipeline    highest ZeRO stage beside pp > 1
    context_parallel      whether it has ring context parallelism
    exchanges_heads       whether ranks of a sequence may exchange tokens for heads
    ring_with_window      whether a ring may run attention with a sliding window
    sequence_parallel     whether it can split norms over the sequence beside tp
    replicated_kv_heads   whether tp may exceed the key/value heads
    zero_with_muon        highest ZeRO stage beside the optimizer Muon
    tied_with_pipeline    whether a tied head may live on another stage than the embedding
    expert_parallel       whether experts may be spread over data-parallel ranks
    experts_ask_for_sp    whether experts beside tp need sequence parallelism
    schedules             pipeline schedules it has
    zero_in_parts         ZeRO stages that it can run within a part of dp x cp
    host_state            what the host can hold: "none"; a "share" of a sharded optimizer; all of it, with its gradients or
                          without, of ZeRO-3's shares, and its weights ("zero"); or all of ZeRO-3's state ("together")
    optimizers            optimizers it has settings for
    small_moments_zero    least ZeRO stage, of more ranks than one, beside moments of 8 or 16 bits
    fine_grained          whether it recomputes norms, expert activations and latent up-projections by themselves
    layers                what a model's layers are made of
    cut_layers            what they are made of where products are cut into chunks
    splits_mixers         whether ranks of a sequence may share state-space mixers
    pads_vocabulary       whether the vocabulary is padded to a multiple of tp
    cuts                  how it cuts products over tp into chunks, None where it does not
    profile               its implementation, whose law of memory its plans have
    splits_layers         whether it has tensor parallelism
    selective             whether it recomputes attention and norms by themselves
    few_microbatches      whether 1F1B may have fewer micro-batches than stages
    offload_in_parts      whether state may lie on the host beside sharding within a part of dp x cp
    """

    zero_with_pipeline: int
    context_parallel: bool
    sequence_parallel: bool
    replicated_kv_heads: bool
    tied_with_pipeline: bool
    schedules: tuple[str, ...]
    exchanges_heads: bool = False
    ring_with_window: bool = True
    zero_with_muon: int = 3
    expert_parallel: bool = False
    experts_ask_for_sp: bool = False
    fine_grained: bool = False
    zero_in_parts: tuple[int, ...] = ()
    host_state: Literal["none", "share", "zero", "together"] = "none"
    optimizers: tuple[str, ...] = ("adamw",)
    small_moments_zero: int = 0
    layers: Layers = Layers.HAND_WRITTEN
    cut_layers: Layers = Layers.HAND_WRITTEN
    splits_mixers: bool = False
    pads_vocabulary: bool = False
    cuts: CutLimits | None = None
    profile: str = ""
    splits_layers: bool = True
    selective: bool = True
    few_microbatches: bool = True
    offload_in_parts: bool = True


# Accelerate 1.15: DDP, FSDP2 over dp_replicate_size x dp_shard_size, or DeepSpeed's ZeRO without MiCS; checkpoints of whole
# layers.
_OVER_ACCELERATE = TrainerLimits(
    zero_with_pipeline=0,
    context_parallel=False,
    sequence_parallel=False,
    replicated_kv_heads=False,
    tied_with_pipeline=False,
    schedules=(),
    zero_in_parts=(2, 3),
    host_state="zero",
    layers=Layers.MODULES,
    cut_layers=Layers.MODULES,
    profile="hf-trainer",
    splits_layers=False,
    selective=False,
    offload_in_parts=False,
)

_OF_PYTORCH = ("gpipe", "1f1b", "interleaved-1f1b", "zb-v", "dualpipe-v")
"""Schedules of torch.distributed.pipelining."""

TRAINERS = {
    # Megatron-LM: the distributed optimizer is ZeRO-1; its FSDP (2 and 3) is taken without a pipeline.
    Launcher.MEGATRON_LM: TrainerLimits(
        zero_with_pipeline=1,
        context_parallel=True,
        sequence_parallel=True,
        replicated_kv_heads=True,
        tied_with_pipeline=True,
        schedules=("1f1b", "interleaved-1f1b"),
        exchanges_heads=True,
        ring_with_window=False,
        zero_with_muon=0,
        # --num-distributed-optimizer-instances: copies of the distributed optimizer.
        zero_in_parts=(1,),
        expert_parallel=True,
        experts_ask_for_sp=True,
        fine_grained=True,
        host_state="share",
        optimizers=("adamw", "sgd_momentum", "muon", "adamw_8bit", "adamw_bf16"),
        small_moments_zero=1,
        splits_mixers=True,
        # To a multiple of 128 x tp (--make-vocab-size-divisible-by).
        pads_vocabulary=True,
        # Its FSDP (ZeRO-2 and 3) refuses the order of launches that they need. Transformer Engine scatters a product's output
        # in four parts, each over all tp ranks (initialize_ub, num_splits).
        cuts=CutLimits(highest_zero=1, scattered_parts=4, held=USERBUFFERS),
        profile="megatron-core-0.20",
    ),
    # DeepSpeed 0.19: PipelineEngine asserts ZeRO below 2; AutoTP replicates norms, and leaves ranks beyond the key/value
    # heads without attention; its long-context axis is Ulysses.
    Launcher.DEEPSPEED: TrainerLimits(
        zero_with_pipeline=1,
        context_parallel=False,
        sequence_parallel=False,
        replicated_kv_heads=False,
        tied_with_pipeline=True,
        schedules=("1f1b",),
        # MiCS.
        zero_in_parts=(3,),
        host_state="zero",
        optimizers=("adamw", "sgd_momentum", "muon"),
        layers=Layers.MODULES,
        cut_layers=Layers.MODULES,
        profile="deepspeed-0.19",
    ),
    # torchtitan 0.3: key/value heads must divide by tp.
    Launcher.TORCHTITAN: TrainerLimits(
        zero_with_pipeline=3,
        context_parallel=True,
        sequence_parallel=True,
        replicated_kv_heads=False,
        tied_with_pipeline=False,
        schedules=_OF_PYTORCH,
        few_microbatches=False,
        # FSDP over a mesh of two dims, which keeps weights after the forward pass or not.
        zero_in_parts=(2, 3),
        host_state="together",
        layers=Layers.MODULES,
        cut_layers=Layers.COMPILED,
        # PyTorch's symmetric memory holds two shares of a rank for chunks on their way.
        cuts=CutLimits(highest_zero=3, scattered_parts=1, held=Buffers(2, Of.RANK)),
        profile="torchtitan-0.3",
    ),
    # The file that exports write: FSDP2 over copies and shards, DTensor, torch.distributed.pipelining.
    Launcher.PYTORCH: TrainerLimits(
        zero_with_pipeline=3,
        context_parallel=False,
        sequence_parallel=True,
        replicated_kv_heads=False,
        tied_with_pipeline=False,
        schedules=_OF_PYTORCH,
        zero_in_parts=(2, 3),
        host_state="together",
        few_microbatches=False,
        optimizers=("adamw", "sgd_momentum"),
        layers=Layers.MODULES,
        cut_layers=Layers.MODULES,
        profile="torchtitan-0.3",
        selective=False,
    ),
    **dict.fromkeys((Launcher.ACCELERATE, Launcher.TRL, Launcher.AXOLOTL, Launcher.LLAMA_FACTORY), _OVER_ACCELERATE),
    # Arguments of the Trainer say no degrees of a mesh.
    Launcher.HF_TRAINER: replace(_OVER_ACCELERATE, zero_in_parts=()),
}


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The limits of a serving engine.

    spreads_over_some   whether experts may be spread over some of the ranks of a stage
    splits_caches       whether a cache may be split along the sequence
    shares_prompts      whether ranks may share the tokens of a prompt
    """

    spreads_over_some: bool
    splits_caches: bool
    shares_prompts: bool


ENGINES = {
    # --enable-expert-parallel is over all ranks or none; its model runner refuses --prefill-context-parallel-size.
    ServingEngine.VLLM: EngineLimits(spreads_over_some=False, splits_caches=True, shares_prompts=False),
    # --enable-prefill-cp; no decode context parallelism.
    ServingEngine.SGLANG: EngineLimits(spreads_over_some=True, splits_caches=False, shares_prompts=True),
    ServingEngine.TENSORRT_LLM: EngineLimits(spreads_over_some=True, splits_caches=True, shares_prompts=False),
}

SERVERS = {
    Launcher.VLLM: ServingEngine.VLLM,
    Launcher.SGLANG: ServingEngine.SGLANG,
    Launcher.TENSORRT_LLM: ServingEngine.TENSORRT_LLM,
}
"""Launchers of serving plans, and the engine that each starts."""
