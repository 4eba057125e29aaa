"""Launchers of training plans: the facts that are known of one, and the table of all.

The facts are the plans that a launcher can express and the kernels that its models run. Their own parsers judge them (tests of
exporters, `real`).

Search and checker read the same facts; what follows from them, each works out by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from types import MappingProxyType
from typing import ClassVar

from meshwright.costmodels.implementations.profile import implementation_profile
from meshwright.costmodels.memory.training_state import MAX_ZERO_STAGE, Optimizer
from meshwright.costmodels.model.implementation import Implementation, LossKernels, TensorOverlap, VectorKernels
from meshwright.costmodels.pipeline import PipelineRuntime, Schedule, names_in
from meshwright.solver.problem.choices import Gradients, Launcher


class OwnBorders(Enum):
    """The rules by which launchers cut a model into stages by themselves."""

    NANOTRON = auto()
    """By what its blocks cost: `solver.problem.launchers.nanotron_stages`."""


class HostState(Enum):
    """The parts of the training state that a launcher can keep in host memory."""

    NONE = auto()
    SHARES_OF_THE_OPTIMIZER = auto()
    ZERO_OFFLOAD = auto()
    """All of a sharded optimizer, under ZeRO-3 any share; gradients as much, from ZeRO-2 up; under ZeRO-3 all weights."""
    ALL_OR_NOTHING = auto()
    """Weights, gradients and optimizer together under ZeRO-3."""


_ALL_STAGES = frozenset(range(MAX_ZERO_STAGE + 1))


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
    mtp                      whether layers beside the head may predict more tokens
    fp16                     whether it trains in fp16, which asks for scaled losses
    fp32                     whether it trains in fp32
    zero_stages              ZeRO stages it has
    zero_beside_cp           those of them that it has beside context parallelism
    arrays_over_mesh         whether ranks are one mesh over which arrays are cut evenly: ranks of a sequence, and those that
                             shard weights, fill nodes or divide them; tp and the ranks that shard divide the model's width
    own_borders              the rule by which it cuts stages by itself; None: plans choose their borders
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
    mtp: bool = False
    fp16: bool = True
    fp32: bool = True
    zero_stages: frozenset[int] = _ALL_STAGES
    zero_beside_cp: frozenset[int] = _ALL_STAGES
    arrays_over_mesh: bool = False
    own_borders: OwnBorders | None = None
    equal_nodes: bool = False
    on_one_node: int = 1
    is_within_others: bool = False


# Models of transformers, trained by PyTorch's DDP or FSDP2, or by DeepSpeed's ZeRO; no pipeline, and whole layers on every rank
# (accelerate 1.15, parallelism_config.py, utils/fsdp_utils.py and utils/deepspeed.py; transformers 5.23, training_args.py).
_OVER_ACCELERATE = Trainer(
    implementation=implementation_profile("hf-trainer").implementation,
    max_zero_with_pipeline=0,
    context_parallel=False,
    sequence_parallel=False,
    replicates_kv_heads=False,
    ties_across_stages=False,
    schedules=frozenset(),
    tensor_parallel=False,
    # gradient_checkpointing, and FSDP's own activation_checkpointing: whole layers.
    selective=False,
    # FSDP2 over a mesh of dp_replicate_size x dp_shard_size.
    zero_within_groups=frozenset({2, 3}),
    # DeepSpeed's; its MiCS is nothing that Accelerate turns on.
    host_state=HostState.ZERO_OFFLOAD,
    offloads_within_groups=False,
    is_within_others=True,
)

# Megatron-LM: the distributed optimizer is ZeRO-1; stages 2 and 3 are its FSDP, which takes no pipeline here.
_MEGATRON_LM = Trainer(
    implementation=implementation_profile("megatron-core-0.20").implementation,
    max_zero_with_pipeline=1,
    context_parallel=True,
    # --cp-comm-type a2a and a2a+p2p; Transformer Engine's ring refuses sliding windows.
    head_exchange=True,
    scans_over_ranks=True,
    windows_in_rings=False,
    sequence_parallel=True,
    replicates_kv_heads=True,
    # --make-vocab-size-divisible-by.
    padded_dims=frozenset({"vocab"}),
    ties_across_stages=True,
    # With virtual stages its schedule is interleaved, else 1F1B.
    schedules=frozenset(names_in(PipelineRuntime.MEGATRON_CORE)),
    expert_parallel=True,
    # Its MoELayer refuses to train beside tp without sequence parallelism.
    experts_ask_for_sp=True,
    # --num-distributed-optimizer-instances.
    zero_within_groups=frozenset({1}),
    # Its Muon refuses the distributed optimizer.
    max_zero_with_muon=0,
    fine_grained=True,
    # --mtp-num-layers.
    mtp=True,
    # Moments of 8 and 16 bits: its precision-aware optimizer, which is a distributed one.
    optimizers=frozenset(Optimizer),
    optimizers_when_sharded=frozenset({Optimizer.ADAMW_8BIT, Optimizer.ADAMW_BF16}),
    # Its HybridDeviceOptimizer splits the distributed optimizer's states by --optimizer-offload-fraction.
    host_state=HostState.SHARES_OF_THE_OPTIMIZER,
    # --tp-comm-overlap. Before Blackwell it needs CUDA_DEVICE_MAX_CONNECTIONS=1, which its FSDP refuses; Transformer
    # Engine scatters in four chunks.
    cut_products=CutProducts(TensorOverlap.USERBUFFERS, max_zero=1, rows_a_rank=4),
)

TRAINERS: Mapping[Launcher, Trainer] = MappingProxyType(
    {
        Launcher.MEGATRON_LM: _MEGATRON_LM,
        # Overrides of a recipe of one GPTModelProvider; they have no name for the format of 8-bit moments
        # (megatron/bridge/utils/activation_map.py).
        Launcher.MEGATRON_BRIDGE: replace(
            _MEGATRON_LM,
            layers=GptLayers(),
            optimizers=frozenset(Optimizer) - {Optimizer.ADAMW_8BIT},
            is_within_others=True,
        ),
        # NeMo 2.5: one GPTConfig and MegatronStrategy. Its groups have no sizes of exchanges inside a ring, and its FSDP sets
        # a field that Megatron-Core has renamed (use_custom_fsdp). GPTConfig has one specification for all layers; Lightning
        # asks for equal nodes (TorchElasticEnvironment, validate_settings).
        Launcher.NEMO: replace(
            _MEGATRON_LM,
            layers=GptLayers(uneven_experts=False),
            mtp=False,
            head_exchange=False,
            zero_stages=frozenset({0, 1}),
            optimizers=frozenset({Optimizer.ADAMW, Optimizer.ADAMW_BF16, Optimizer.SGD_MOMENTUM}),
            optimizers_when_sharded=frozenset({Optimizer.ADAMW_BF16}),
            equal_nodes=True,
            is_within_others=True,
        ),
        # DeepSpeed 0.19: PipelineModule refuses ZeRO 2 and 3; AutoTP replicates norms and leaves a rank without key/value heads
        # without attention; its long-context axis is Ulysses.
        Launcher.DEEPSPEED: Trainer(
            implementation=implementation_profile("deepspeed-0.19").implementation,
            max_zero_with_pipeline=1,
            context_parallel=False,
            sequence_parallel=False,
            replicates_kv_heads=False,
            ties_across_stages=True,
            # PipelineModule's own grid has pipe outermost, as PipeModelDataParallelTopology has (axes pipe, data, model).
            schedules=frozenset(names_in(PipelineRuntime.DEEPSPEED)),
            # Layers of a PipelineModule may pass tuples of tensors on.
            passes_branches=True,
            optimizers=frozenset({Optimizer.ADAMW, Optimizer.SGD_MOMENTUM, Optimizer.MUON}),
            # MiCS; shares of the states (Twin-Flow) are ZeRO-3's.
            zero_within_groups=frozenset({3}),
            host_state=HostState.ZERO_OFFLOAD,
        ),
        # torchtitan 0.3: it splits key/value heads evenly (its PR 4016) and has no tied weights over stages.
        Launcher.TORCHTITAN: Trainer(
            # Exported configurations compile for chunked products alone.
            implementation=implementation_profile("torchtitan-0.3").implementation,
            max_zero_with_pipeline=3,
            context_parallel=True,
            sequence_parallel=True,
            replicates_kv_heads=False,
            ties_across_stages=False,
            # Its device mesh has pp outermost (ParallelDims).
            schedules=frozenset(names_in(PipelineRuntime.PYTORCH)),
            # Schedule1F1B refuses it (torch.distributed.pipelining.schedules).
            short_1f1b=False,
            # A PipelineStage's outputs may be a tuple of tensors.
            passes_branches=True,
            # A mesh of data_parallel_replicate_degree x data_parallel_shard_degree, whether weights are resharded or not.
            zero_within_groups=frozenset({2, 3}),
            # training.enable_cpu_offload: FSDP's CPUOffloadPolicy moves parameters, gradients and the optimizer.
            host_state=HostState.ALL_OR_NOTHING,
            # Its early_step_in_backward, which released gradients, is gone.
            # --compile.enable_async_tensor_parallel: in compiled layers alone, with which it compiles the loss, too.
            # Exports bring a configuration of the model's sizes for its models llama3 and qwen3.
            layers=LlamaLayers(qkv_bias=False),
            # training.mixed_precision_param: bfloat16 or float32.
            fp16=False,
            cut_products=CutProducts(TensorOverlap.SYMMETRIC_MEMORY, kernels=VectorKernels.COMPILED, loss=LossKernels.COMPILED),
        ),
        # A file of PyTorch alone: FSDP2, DTensor and torch.distributed.pipelining.
        Launcher.PYTORCH: Trainer(
            # Modules that are not compiled, as torchtitan's.
            implementation=implementation_profile("torchtitan-0.3").implementation,
            max_zero_with_pipeline=3,
            context_parallel=False,
            sequence_parallel=True,
            replicates_kv_heads=False,
            ties_across_stages=False,
            # Its device mesh has pp outermost.
            schedules=frozenset(names_in(PipelineRuntime.PYTORCH)),
            # Schedule1F1B refuses it (torch.distributed.pipelining.schedules).
            short_1f1b=False,
            optimizers=frozenset({Optimizer.ADAMW, Optimizer.SGD_MOMENTUM}),
            # checkpoint_wrapper around whole layers.
            selective=False,
            # A mesh of copies x shards.
            zero_within_groups=frozenset({2, 3}),
            # FSDP's CPUOffloadPolicy.
            host_state=HostState.ALL_OR_NOTHING,
            layers=LlamaLayers(qkv_bias=True),
            fp16=False,
            is_within_others=True,
        ),
        # nanotron (main of 7 April 2026): its model of Qwen2's and Llama's layers. Context parallelism asks for a checkpoint
        # (trainer.py), and its experts are not spread over ranks: expert_parallel_size above 1 stops (parallel/context.py).
        Launcher.NANOTRON: Trainer(
            # Modules that are not compiled, and FlashAttention-2, as torchtitan's.
            implementation=implementation_profile("torchtitan-0.3").implementation,
            max_zero_with_pipeline=1,
            context_parallel=False,
            # tp_mode: REDUCE_SCATTER.
            sequence_parallel=True,
            # config.py asserts num_key_value_heads >= tp; they are split evenly.
            replicates_kv_heads=False,
            # _vocab_size_with_padding.
            padded_dims=frozenset({"vocab"}),
            ties_across_stages=True,
            # Its ranks have pp outermost (parallel/context.py).
            schedules=frozenset(names_in(PipelineRuntime.NANOTRON)),
            # OneForwardOneBackwardPipelineEngine asserts pp - 1 micro-batches.
            short_1f1b=False,
            # recompute_layer: whole layers.
            selective=False,
            layers=LlamaLayers(qkv_bias=True, qk_norm=False, own_head_width=False),
            # It scales no losses, and FlashAttention has no fp32.
            fp16=False,
            fp32=False,
            # ZeroDistributedOptimizer, whatever zero_stage above 0 is.
            zero_stages=frozenset({0, 1}),
            own_borders=OwnBorders.NANOTRON,
            # Up to 8 ranks are taken for those of one node, more for LOCAL_WORLD_SIZE a node (parallel/context.py).
            equal_nodes=True,
            on_one_node=8,
            is_within_others=True,
        ),
        # MaxText (main of 22 August 2026) on GPUs: axes of src/maxtext/configs/base.yml over a mesh of JAX. Its pipelines are
        # circular, over stages that are scanned (layers/pipeline.py): no schedule of plans is that one. Of its decoders those
        # of llama2, qwen2 and qwen3 (models/llama2.py, qwen2.py, qwen3.py).
        Launcher.MAXTEXT: Trainer(
            # Borrowed: nothing of it was measured here.
            implementation=implementation_profile("maxtext").implementation,
            max_zero_with_pipeline=0,
            # ici_context_parallelism: a ring of Transformer Engine's (layers/attention_op.py, cudnn_flash_attention).
            context_parallel=True,
            # ici_tensor_sequence_parallelism; without it ici_tensor_parallelism.
            sequence_parallel=True,
            # kv_heads lie over the axes of tp, evenly (logical_axis_rules).
            replicates_kv_heads=False,
            ties_across_stages=False,
            schedules=frozenset(),
            # fsdp beside data.
            zero_within_groups=frozenset({3}),
            # optimizer_memory_host_offload and parameter_memory_host_offload bring all back to the device for the update
            # (trainers/pre_train/train.py): the host updates nothing.
            layers=LlamaLayers(qkv_bias=True),
            # It scales no losses, and cuDNN's fused attention has no fp32.
            fp16=False,
            fp32=False,
            # data, shard_optimizer_over_data, fsdp.
            zero_stages=frozenset({0, 1, 3}),
            # Weights lie over context as over fsdp (logical_axis_rules, embed).
            zero_beside_cp=frozenset({3}),
            arrays_over_mesh=True,
            # ici axes are of one size on all nodes, which are slices to JAX (create_device_mesh).
            equal_nodes=True,
            is_within_others=True,
        ),
        # A script of the user's own, with adapters of PEFT's.
        Launcher.ACCELERATE: replace(_OVER_ACCELERATE, adapters=True),
        # By its own arguments, which have no groups of ranks that shard (parallelism_config takes no text).
        Launcher.HF_TRAINER: replace(_OVER_ACCELERATE, zero_within_groups=frozenset()),
        # Its SFT trainer, started by Accelerate.
        Launcher.TRL: replace(_OVER_ACCELERATE, adapters=True, masks_documents=True),
        # It sets up FSDP2 and DeepSpeed by keys of its own.
        Launcher.AXOLOTL: replace(_OVER_ACCELERATE, adapters=True, masks_documents=True, fills_sequences=True),
        # DeepSpeed by a key of its own, FSDP2 by Accelerate.
        Launcher.LLAMA_FACTORY: replace(_OVER_ACCELERATE, adapters=True),
    }
)
"""Launchers of training plans, in the order of `Launcher`."""
