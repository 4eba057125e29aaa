"""The kernels that the model of a request runs."""

from __future__ import annotations

from dataclasses import replace

from meshwright.costmodels.model.implementation import HAND_FUSED, AttentionKernels, Dropout, Implementation, TensorOverlap
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.launchers.table import TRAINERS
from meshwright.solver.problem.request import TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.unfused_attention import with_dropout, without_fused_attention


def chunked_implementation(implementation: Implementation, search: Search) -> Implementation:
    """The same with products over tp cut into chunks, in the free space as Transformer Engine cuts them."""
    trainer = None if search.space is Space.FREE else TRAINERS.get(search.launcher)
    if trainer is None or trainer.cut_products is None:
        return replace(implementation, tensor_overlap=TensorOverlap.USERBUFFERS)
    cut = trainer.cut_products
    return replace(
        implementation,
        tensor_overlap=cut.tensor_overlap,
        kernels=cut.kernels or implementation.kernels,
        stated_loss=cut.loss or implementation.stated_loss,
    )


FREE = replace(HAND_FUSED, tensor_overlap=TensorOverlap.WEIGHT_GRADIENT)
"""The kernels of the free space: the best that can be written by hand, sums over tp hidden under weight gradients as launchers
hide them. A launchable plan is no faster than the same plan of the free space."""


def launcher_implementation(search: Search) -> Implementation:
    """The launcher's kernels; in the free space, which names no launcher, `FREE`."""
    if search.space is Space.FREE:
        return FREE
    if search.launcher not in TRAINERS:
        return HAND_FUSED
    return TRAINERS[search.launcher].implementation


def implementation_of(workload: TrainingWorkload, search: Search) -> Implementation:
    """The implementation that the workload states, else the launcher's; raises WorkloadError for an unknown profile."""
    launchers = launcher_implementation(search)
    return launchers if workload.implementation is None else workload.implementation.over(launchers)


def as_implemented(model: ModelGraph, workload: TrainingWorkload, search: Search) -> tuple[ModelGraph, TrainingWorkload]:
    """The model with the tensors that its implementation keeps, and the workload with every field of it decided.

    Both are unchanged where the workload states none, and where they are implemented already. Raises InvalidInputError for an
    unknown profile and for attention that has no unfused cost model.
    """
    if workload.implementation is None:
        return model, workload
    decided = workload.implementation.decided(launcher_implementation(search))
    whole = implementation_of(workload, search)
    if whole.attention_kernels is not AttentionKernels.FUSED:
        model = without_fused_attention(model, seq_len=workload.seq_len, dropout=whole.dropout, kernels=whole.attention_kernels)
    if whole.dropout is Dropout.MASKED:
        model = with_dropout(model)
    return model, replace(workload, implementation=decided)
