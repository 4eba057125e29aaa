"""DeepSpeed: PipelineModule refuses ZeRO 2 and 3; AutoTP replicates norms and leaves a rank without key/value heads without
attention; its long-context axis is Ulysses."""

from __future__ import annotations

from meshwright.costmodels.implementations.profile import implementation_profile
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.pipeline import PipelineRuntime, names_in
from meshwright.solver.problem.launchers.trainer import HostState, Trainer

LAUNCHER = Trainer(
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
)
