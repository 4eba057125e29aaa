"""What launchers can express of training plans."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from meshwright.costmodels.memory.training_state import MAX_ZERO_STAGE, Optimizer
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.problem.choices import Launcher


class HostState(Enum):
    """What of the training state a launcher can keep in host memory."""

    NONE = auto()
    SHARES_OF_THE_OPTIMIZER = auto()
    ZERO_OFFLOAD = auto()
    """All of a sharded optimizer, under ZeRO-3 any share; gradients as much, from ZeRO-2 up; under ZeRO-3 all weights."""
    ALL_OR_NOTHING = auto()
    """Weights, gradients and optimizer together under ZeRO-3."""


@dataclass(frozen=True, slots=True)
class LauncherRules:
    """What a launcher can express of a training plan beyond what every launcher can.

    max_zero_with_pipeline   highest ZeRO stage beside pipeline parallelism
    context_parallel         whether it has ring context parallelism
    head_exchange            whether context parallelism may exchange tokens for heads (Ulysses), alone or inside a ring
    scans_over_ranks         whether context parallelism may split state-space mixers
    windows_in_rings         whether attention in a ring may have a sliding window
    sequence_parallel        whether norms may be sharded over the sequence beside tp
    replicates_kv_heads      whether tp may be larger than the number of key/value heads
    ties_across_stages       whether a tied head may be on another stage than the embedding
    schedules                pipeline schedules it runs
    expert_parallel          whether experts may be spread over the ranks of dp x cp
    experts_ask_for_sp       whether experts beside tp need sequence parallelism
    max_zero_with_muon       highest ZeRO stage beside the optimizer Muon
    optimizers               optimizers it has settings for
    optimizers_when_sharded  those of them that it has beside ZeRO-1 and higher, or on one rank, alone
    hybrid_sharding          whether ZeRO-3 may shard within a part of the dp x cp ranks
    host_state               what of the training state may lie in host memory
    fine_grained             whether norms, expert activations and latent up-projections can be recomputed by themselves
    cuts_products            whether products over tp are cut into chunks, whose gathers and scatters run beside them
    max_zero_with_cuts       highest ZeRO stage beside that
    rows_a_rank_with_cuts    what the rows of a micro-batch on each tp rank must be a multiple of beside that
    passes_branches          whether stages pass on more tensors than one, as stages of a model that branches must
    """

    max_zero_with_pipeline: int
    context_parallel: bool
    sequence_parallel: bool
    replicates_kv_heads: bool
    ties_across_stages: bool
    schedules: frozenset[Schedule]
    head_exchange: bool = False
    scans_over_ranks: bool = False
    windows_in_rings: bool = True
    expert_parallel: bool = False
    experts_ask_for_sp: bool = False
    max_zero_with_muon: int = MAX_ZERO_STAGE
    fine_grained: bool = False
    passes_branches: bool = False
    hybrid_sharding: bool = False
    optimizers: frozenset[Optimizer] = frozenset({Optimizer.ADAMW})
    optimizers_when_sharded: frozenset[Optimizer] = frozenset()
    host_state: HostState = HostState.NONE
    cuts_products: bool = False
    max_zero_with_cuts: int = MAX_ZERO_STAGE
    rows_a_rank_with_cuts: int = 1


LAUNCHERS = {
    # Megatron-LM: the distributed optimizer is ZeRO-1; stages 2 and 3 are its FSDP, which takes no pipeline here. Its Muon
    # refuses the distributed optimizer. With virtual stages its schedule is interleaved, else 1F1B. Its MoELayer refuses to
    # train beside tp without sequence parallelism.
    Launcher.MEGATRON_LM: LauncherRules(
        max_zero_with_pipeline=1,
        context_parallel=True,
        # --cp-comm-type a2a and a2a+p2p; Transformer Engine's ring refuses sliding windows.
        head_exchange=True,
        scans_over_ranks=True,
        windows_in_rings=False,
        sequence_parallel=True,
        replicates_kv_heads=True,
        ties_across_stages=True,
        schedules=frozenset({Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED}),
        expert_parallel=True,
        experts_ask_for_sp=True,
        max_zero_with_muon=0,
        fine_grained=True,
        # Moments of 8 and 16 bits: its precision-aware optimizer, which is a distributed one.
        optimizers=frozenset(Optimizer),
        optimizers_when_sharded=frozenset({Optimizer.ADAMW_8BIT, Optimizer.ADAMW_BF16}),
        # Its HybridDeviceOptimizer splits the distributed optimizer's states by --optimizer-offload-fraction.
        host_state=HostState.SHARES_OF_THE_OPTIMIZER,
        # --tp-comm-overlap. Before Blackwell it needs CUDA_DEVICE_MAX_CONNECTIONS=1, which its FSDP refuses; Transformer
        # Engine scatters in four chunks.
        cuts_products=True,
        max_zero_with_cuts=1,
        rows_a_rank_with_cuts=4,
    ),
    # DeepSpeed: PipelineModule refuses ZeRO 2 and 3; AutoTP replicates norms and leaves a rank without key/value heads
    # without attention; its long-context axis is Ulysses. Layers of a PipelineModule may pass tuples of tensors on.
    Launcher.DEEPSPEED: LauncherRules(
        max_zero_with_pipeline=1,
        context_parallel=False,
        sequence_parallel=False,
        replicates_kv_heads=False,
        ties_across_stages=True,
        schedules=frozenset({Schedule.ONE_F_ONE_B}),
        passes_branches=True,
        optimizers=frozenset({Optimizer.ADAMW, Optimizer.SGD_MOMENTUM, Optimizer.MUON}),
        # MiCS; shares of the states (Twin-Flow) are ZeRO-3's.
        hybrid_sharding=True,
        host_state=HostState.ZERO_OFFLOAD,
    ),
    # torchtitan 0.3 splits key/value heads evenly (its PR 4016) and has no tied weights over stages. Its schedules are those
    # of torch.distributed.pipelining: GPipe, 1F1B, Interleaved1F1B, ZBVZeroBubble, DualPipeV.
    Launcher.TORCHTITAN: LauncherRules(
        max_zero_with_pipeline=3,
        context_parallel=True,
        sequence_parallel=True,
        replicates_kv_heads=False,
        ties_across_stages=False,
        schedules=frozenset({Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.ZB_V, Schedule.DUALPIPE_V}),
        # A PipelineStage's outputs may be a tuple of tensors.
        passes_branches=True,
        hybrid_sharding=True,
        # training.enable_cpu_offload: FSDP's CPUOffloadPolicy moves parameters, gradients and the optimizer.
        host_state=HostState.ALL_OR_NOTHING,
        # --compile.enable_async_tensor_parallel.
        cuts_products=True,
    ),
}
