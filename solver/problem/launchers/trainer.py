"""Facts of launchers of training plans: the plans that they can express, and the kernels that their models run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import ClassVar

from meshwright.costmodels.memory.training_state import MAX_ZERO_STAGE, Optimizer
from meshwright.costmodels.model.implementation import Implementation, LossKernels, TensorOverlap, VectorKernels
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.problem.choices import Gradients
from meshwright.solver.problem.graph import ModelGraph


class HostState(Enum):
    """The parts of the training state that a launcher can keep in host memory."""

    NONE = auto()
    SHARES_OF_THE_OPTIMIZER = auto()
    ZERO_OFFLOAD = auto()
    """All of a sharded optimizer, under ZeRO-3 any share; gradients as much, from ZeRO-2 up; under ZeRO-3 all weights."""
    ALL_OR_NOTHING = auto()
    """Weights, gradients and optimizer together under ZeRO-3."""


@dataclass(frozen=True, slots=True)
class CutProducts:
    """The way in which a launcher cuts products over tp into chunks, whose gathers and scatters run beside them.

    tensor_overlap   what runs beside the products
    max_zero         highest ZeRO stage beside it
    rows_a_rank      what the rows of a micro-batch on each tp rank must be a multiple of
    kernels, loss    those of layers with such products, None where they are those of all others
    """

    tensor_overlap: TensorOverlap
    max_zero: int = MAX_ZERO_STAGE
    rows_a_rank: int = 1
    kernels: VectorKernels | None = None
    loss: LossKernels | None = None


@dataclass(frozen=True, slots=True)
class LlamaLayers:
    """The layers of Llama, of any sizes.

    qkv_bias        whether q, k and v may have biases
    qk_norm         whether heads may have norms
    own_head_width  whether heads may be wider or narrower than the model's width over their number
    """

    qkv_bias: bool
    qk_norm: bool = True
    own_head_width: bool = True
    said: ClassVar[str] = "Llama's"


@dataclass(frozen=True, slots=True)
class GptLayers:
    """The layers of Megatron-Core's GPT model, dense or with experts, of any sizes; not latent attention.

    uneven_experts  whether some layers may have experts and others not
    """

    uneven_experts: bool = True
    said: ClassVar[str] = "those of GPT models, without latent attention"


@dataclass(frozen=True, slots=True)
class Trainer:
    """The training plans that a launcher can express, beyond what every launcher can, and the kernels of its layers.

    implementation           kernels of its layers; what selective recomputation means is not taken from it: plans mean
                             attention and norms
    max_zero_with_pipeline   highest ZeRO stage beside pipeline parallelism
    context_parallel         whether it has ring context parallelism
    head_exchange            whether context parallelism may exchange tokens for heads (Ulysses), alone or inside a ring
    scans_over_ranks         whether context parallelism may split state-space mixers
    windows_in_rings         whether attention in a ring may have a sliding window
    sequence_parallel        whether norms may be sharded over the sequence beside tp
    replicates_kv_heads      whether tp may be larger than the number of key/value heads
    padded_dims              dims that it fills up where they do not divide by tp
    ties_across_stages       whether a tied head may be on another stage than the embedding
    schedules                pipeline schedules it runs
    expert_parallel          whether experts may be spread over the ranks of dp x cp
    experts_ask_for_sp       whether experts beside tp need sequence parallelism
    max_zero_with_muon       highest ZeRO stage beside the optimizer Muon
    optimizers               optimizers it has settings for
    optimizers_when_sharded  those of them that it has beside ZeRO-1 and higher, or on one rank, alone
    zero_within_groups       ZeRO stages that may shard within groups of the dp x cp ranks
    host_state               what of the training state may lie in host memory
    gradients                how long gradients may live
    fine_grained             whether norms, expert activations and latent up-projections can be recomputed by themselves
    cut_products             how products over tp are cut into chunks, None where they are not
    passes_branches          whether stages pass on more tensors than one, as stages of a model that branches must
    tensor_parallel          whether it splits layers over tp
    selective                whether it recomputes attention and norms alone; all recompute whole layers
    offloads_within_groups   whether state may lie on the host where it is sharded within groups of ranks
    short_1f1b               whether 1F1B may have fewer micro-batches than stages
    adapters                 whether it trains low-rank adapters beside frozen weights (PEFT's), packed in four bits or not
    fills_sequences          whether it fills sequences of documents up (padding) instead of packing them
    masks_documents          whether it packs documents under masks that keep attention within each
    layers                   layers that its models have; None where it takes a model from elsewhere, or most models
    fp16                     whether it trains in fp16, which asks for scaled losses
    fp32                     whether it trains in fp32
    max_zero                 highest ZeRO stage it has
    own_borders              [model, pp] first layers of the stages that it cuts by itself, and the end; None where it finds
                             none. None: plans choose their borders
    equal_nodes              whether nodes must have equally many devices
    on_one_node              devices up to which they must be on one node, beside that
    is_within_others         whether other launchers of the table run all that it runs, with the same kernels: a search of the
                             free space asks those
    """

    implementation: Implementation
    max_zero_with_pipeline: int
    context_parallel: bool
    sequence_parallel: bool
    replicates_kv_heads: bool
    ties_across_stages: bool
    schedules: frozenset[Schedule]
    head_exchange: bool = False
    scans_over_ranks: bool = False
    windows_in_rings: bool = True
    padded_dims: frozenset[str] = frozenset()
    expert_parallel: bool = False
    experts_ask_for_sp: bool = False
    max_zero_with_muon: int = MAX_ZERO_STAGE
    fine_grained: bool = False
    passes_branches: bool = False
    zero_within_groups: frozenset[int] = frozenset()
    optimizers: frozenset[Optimizer] = frozenset({Optimizer.ADAMW})
    optimizers_when_sharded: frozenset[Optimizer] = frozenset()
    host_state: HostState = HostState.NONE
    gradients: frozenset[Gradients] = frozenset({Gradients.KEPT})
    cut_products: CutProducts | None = None
    tensor_parallel: bool = True
    selective: bool = True
    offloads_within_groups: bool = True
    short_1f1b: bool = True
    adapters: bool = False
    masks_documents: bool = False
    fills_sequences: bool = False
    layers: LlamaLayers | GptLayers | None = None
    fp16: bool = True
    fp32: bool = True
    max_zero: int = MAX_ZERO_STAGE
    own_borders: Callable[[ModelGraph, int], tuple[int, ...] | None] | None = None
    equal_nodes: bool = False
    on_one_node: int = 1
    is_within_others: bool = False
