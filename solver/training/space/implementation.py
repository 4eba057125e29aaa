"""The kernels that models of a search's launcher run."""

from __future__ import annotations

from dataclasses import replace

from meshwright.costmodels.model.implementation import HAND_FUSED, Implementation, TensorOverlap
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.launchers.table import TRAINERS
from meshwright.solver.problem.search import Search


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
    """The launcher's kernels; in the free space, which names no launcher, the best that can be written by hand."""
    if search.space is Space.FREE or search.launcher not in TRAINERS:
        return HAND_FUSED
    return TRAINERS[search.launcher].implementation
