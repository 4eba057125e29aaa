"""Megatron-LM: the distributed optimizer is ZeRO-1; stages 2 and 3 are its FSDP, which takes no pipeline here."""

from __future__ import annotations

from meshwright.costmodels.implementations.profile import implementation_profile
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.model.implementation import TensorOverlap
from meshwright.costmodels.pipeline import PipelineRuntime, names_in
from meshwright.solver.problem.launchers.trainer import CutProducts, HostState, Trainer

LAUNCHER = Trainer(
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
    # Moments of 8 and 16 bits: its precision-aware optimizer, which is a distributed one.
    optimizers=frozenset(Optimizer),
    optimizers_when_sharded=frozenset({Optimizer.ADAMW_8BIT, Optimizer.ADAMW_BF16}),
    # Its HybridDeviceOptimizer splits the distributed optimizer's states by --optimizer-offload-fraction.
    host_state=HostState.SHARES_OF_THE_OPTIMIZER,
    # --tp-comm-overlap. Before Blackwell it needs CUDA_DEVICE_MAX_CONNECTIONS=1, which its FSDP refuses; Transformer
    # Engine scatters in four chunks.
    cut_products=CutProducts(TensorOverlap.USERBUFFERS, max_zero=1, rows_a_rank=4),
)
