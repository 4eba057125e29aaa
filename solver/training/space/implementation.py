"""The kernels that the model of a request runs."""

from __future__ import annotations

from dataclasses import replace

from meshwright.costmodels.model.implementation import (
    HAND_FUSED,
    AttentionKernels,
    Dropout,
    Implementation,
    ScanOverRanks,
    TensorOverlap,
    TrainedWeights,
)
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.implementation import with_dropout, without_fused_attention
from meshwright.solver.problem.launchers.table import TRAINERS
from meshwright.solver.problem.request import TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.token_prediction import with_token_prediction


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


def launcher_implementation(search: Search) -> Implementation:
    """The launcher's kernels; one that trains nothing stands for the best that can be written by hand.

    The free space has the same kernels, so that what its plans gain is worth of freedom. What ranks tell one another is free in
    it: sums over tp hide under weight gradients, and ranks of a sequence share states.
    """
    trainer = TRAINERS.get(search.launcher)
    launchers = HAND_FUSED if trainer is None else trainer.implementation
    if search.space is not Space.FREE:
        return launchers
    return replace(launchers, tensor_overlap=TensorOverlap.WEIGHT_GRADIENT, scan_over_ranks=ScanOverRanks.STATES)


def implementation_of(workload: TrainingWorkload, search: Search) -> Implementation:
    """The implementation that the workload states, else the launcher's; raises WorkloadError for an unknown profile."""
    launchers = launcher_implementation(search)
    found = launchers if workload.implementation is None else workload.implementation.over(launchers)
    return found if workload.adapter is None else replace(found, trained=TrainedWeights.ADAPTERS)


def as_implemented(model: ModelGraph, workload: TrainingWorkload, search: Search) -> tuple[ModelGraph, TrainingWorkload]:
    """The model with its modules of more tokens and the tensors that its implementation keeps, and the workload with each field
    of the implementation decided.

    Both are unchanged where the workload states neither, and where they are implemented already. Raises InvalidInputError for
    an unknown profile, for attention that has no unfused cost model, and for modules beside what is no decoder.
    """
    model = with_token_prediction(model, workload.mtp_layers)
    if workload.implementation is None:
        return model, workload
    decided = workload.implementation.decided(launcher_implementation(search))
    whole = implementation_of(workload, search)
    if whole.attention_kernels is not AttentionKernels.FUSED:
        model = without_fused_attention(model, seq_len=workload.seq_len, dropout=whole.dropout, kernels=whole.attention_kernels)
    if whole.dropout is Dropout.MASKED:
        model = with_dropout(model)
    return model, replace(workload, implementation=decided)
