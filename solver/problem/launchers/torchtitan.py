"""torchtitan 0.3: it splits key/value heads evenly (its PR 4016) and has no tied weights over stages."""

from __future__ import annotations

from meshwright.costmodels.implementations.profile import implementation_profile
from meshwright.costmodels.model.implementation import (
    LossKernels,
    TensorOverlap,
    VectorKernels,
)
from meshwright.costmodels.pipeline import PipelineRuntime, names_in
from meshwright.solver.problem.launchers.trainer import CutProducts, HostState, Trainer

LAUNCHER = Trainer(
    # Exported configurations compile for chunked products alone.
    implementation=implementation_profile("torchtitan-0.3").implementation,
    max_zero_with_pipeline=3,
    context_parallel=True,
    sequence_parallel=True,
    replicates_kv_heads=False,
    ties_across_stages=False,
    # Its device mesh has pp outermost (ParallelDims), so rank_orders stay at that.
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
    cut_products=CutProducts(TensorOverlap.SYMMETRIC_MEMORY, kernels=VectorKernels.COMPILED, loss=LossKernels.COMPILED),
)
