"""A file of PyTorch alone: FSDP2, DTensor and torch.distributed.pipelining, as `app.exporters.pytorch` writes it."""

from __future__ import annotations

from meshwright.costmodels.implementations.profile import implementation_profile
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.pipeline import PipelineRuntime, names_in
from meshwright.solver.problem.launchers.trainer import HostState, Trainer

LAUNCHER = Trainer(
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
    is_within_others=True,
)
