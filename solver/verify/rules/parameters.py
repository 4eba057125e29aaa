"""Parameters that one rank stores, by how the model is divided."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.costmodels.model.dims import HEADS, KV_HEADS, SSM_GROUPS, SSM_HEADS
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.solver.answer.stage import Stage
from meshwright.solver.problem.graph import Block
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.verify.launchers import Layers

REPLICATE = "replicate"
LEADERS = {KV_HEADS: HEADS, SSM_GROUPS: SSM_HEADS}


def picked_dims(operator: Operator) -> set[str]:
    """Dims that only the weights of a product have: each row meets one index of them, an expert, which routing picks."""
    if operator.kind is not OperatorKind.MATMUL:
        return set()
    in_weights = {dim for weight in operator.weights for dim in weight.dims}
    return in_weights - {dim for tensor in (*operator.inputs, *operator.outputs) for dim in tensor.dims}


@dataclass(frozen=True, slots=True)
class Share:
    """The division of the model by the tp axis, by the strategy of every operator, by the ep axis of its experts, and by the cp
    axis (whose share of the sequence is in ``sizes``) of attention. ``crowding`` is the rows of the ep rank with the most over
    the mean, ``layers`` the parts of the launcher's layers."""

    tp: int
    strategies: dict[tuple[str, str], str]
    sizes: dict[str, int]
    ep: int = 1
    cp: int = 1
    crowding: float = 1.0
    layers: Layers = Layers.HAND_WRITTEN

    def local(self, block: str, operator: Operator) -> dict[str, int]:
        """Sizes of dims on one rank; a vocabulary that is padded is rounded up, key/value heads fewer than tp are copied."""
        dim = self.strategies[block, operator.name]
        sizes = dict(self.sizes)
        if dim != REPLICATE:
            sizes[dim] = math.ceil(sizes[dim] / self.tp)
            for follower in (name for name, leader in LEADERS.items() if leader == dim and name in sizes):
                sizes[follower] //= min(self.tp, sizes[follower])
        for experts in picked_dims(operator):
            sizes[experts] //= self.ep
        return sizes


@dataclass(frozen=True, slots=True)
class Owned:
    """Parameters that one rank stores: those that all dp x cp ranks hold alike, and those of spread experts."""

    shared: int
    experts: int

    @property
    def total(self) -> int:
        """Both together."""
        return self.shared + self.experts


def owned_parameters(block: Block, share: Share) -> Owned:
    """Parameters that one rank stores of one copy of a block, weights tied to another block's left out."""
    shared, experts = 0, 0
    for operator in block.operators:
        stored = sum(
            weight.elements(share.local(block.name, operator)) for weight in operator.weights if weight.tied_to is None
        )
        if picked_dims(operator):
            experts += stored
        else:
            shared += stored
    return Owned(shared, experts)


def tied_copies(request: PlanRequest, stage: Stage, share: Share) -> tuple[int, int]:
    """Least and most parameters that a stage stores for weights owned elsewhere: one copy of each owner that no layer
    of the stage holds, or one copy for each layer that uses it."""
    here = {span.block: span.count for span in stage.blocks}
    least: dict[str, int] = {}
    most = 0
    for block, operator, weight in request.model.tied_weights():
        if block not in here or weight.tied_to is None:
            continue
        size = weight.elements(share.local(block, request.model.block(block).operator(operator)))
        most += here[block] * size
        if weight.tied_to.split("/")[0] not in here:
            least[weight.tied_to] = size
    return sum(least.values()), most
