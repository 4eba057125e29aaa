"""The weights that a change of layout brings to each device: those of the new layout that it does not hold in the old one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from meshwright.costmodels.model.dims import EXPERT_FFN
from meshwright.costmodels.model.operators import Operator, Weight
from meshwright.costmodels.model.split_dims import RankGrid, is_routed, split_dim
from meshwright.costmodels.serving.precision import ServingPrecision
from meshwright.solver.answer.axes import Axes
from meshwright.solver.blocks.tp_strategies import Strategy
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.serving.engines.engine import Engine
from meshwright.solver.switching.pieces import Pieces, n_pieces, shared_cells, stored_pieces


@dataclass(eq=False)
class Resharding:
    """Bytes of a model's weights that devices load when layouts of one worker change; remembers what ranks share.

    Both layouts have one attention group and no kvp, and number the devices alike: stage by stage, ranks of a stage one after
    another.
    """

    model: ModelGraph
    precision: ServingPrecision
    _shared: dict[tuple[str, RankGrid, RankGrid], np.ndarray] = field(default_factory=dict)

    def loaded_bytes(self, old: Engine, new: Engine) -> float:
        """Bytes that the device which lacks most must load when ``new`` takes the place of ``old``.

        What a device holds of both stays. Tied weights, copies of hot experts and experts that some ranks split count as not
        held.
        """
        before, after = old.layout, new.layout
        most = 0.0
        for device in range(after.devices):
            old_stage, old_rank = divmod(device, before.grid.ranks)
            new_stage, new_rank = divmod(device, after.grid.ranks)
            kept = sum(
                count * float(self._shared_bytes(block, before.grid, after.grid)[old_rank, new_rank])
                for block, count in _common_layers(old, old_stage, new, new_stage).items()
            )
            most = max(most, new.needs[new_stage].weights_bytes - kept)
        return most

    def _shared_bytes(self, block: str, old: RankGrid, new: RankGrid) -> np.ndarray:
        """[old rank, new rank] bytes of a block's weights that two ranks of a stage both hold."""
        key = (block, old, new)
        if key not in self._shared:
            total = np.zeros((old.ranks, new.ranks))
            for operator in self.model.block(block).operators:
                element_bytes = self.precision.of(operator).size_bytes
                for weight in operator.weights:
                    pieces = [_pieces(self.model, operator, weight, grid) for grid in (old, new)]
                    if weight.tied_to is None and pieces[0] is not None and pieces[1] is not None:
                        total += element_bytes * _common_elements(pieces[0], pieces[1])
            self._shared[key] = total
        return self._shared[key]


def _common_layers(old: Engine, old_stage: int, new: Engine, new_stage: int) -> dict[str, int]:
    """Layers that two stages both hold, by block."""
    found: dict[str, int] = {}
    for a in old.spans[old_stage]:
        for b in new.spans[new_stage]:
            both = min(a.first + a.count, b.first + b.count) - max(a.first, b.first)
            if a.block == b.block and both > 0:
                found[a.block] = found.get(a.block, 0) + both
    return found


def _pieces(model: ModelGraph, operator: Operator, weight: Weight, grid: RankGrid) -> Pieces | None:
    """Return the piece of a weight that each rank of a stage holds; None where ranks of some groups share an expert."""
    strategy, axes = Strategy(split_dim(operator)), Axes(tp=grid.ranks)
    if is_routed(operator):
        if grid.ep not in (1, grid.ranks):
            return None
        whole = grid.ep == grid.ranks
        strategy = Strategy(None if whole else EXPERT_FFN)
        axes = Axes(tp=grid.ranks, ep=grid.ep, etp=1 if whole else None)
    sizes = {dim: model.dims[dim] for dim in weight.dims}
    return stored_pieces(operator, weight, sizes, strategy=strategy, axes=axes, is_state_sharded=False)


def _common_elements(old: Pieces, new: Pieces) -> np.ndarray:
    """[old rank, new rank] elements of a tensor that both hold."""
    table = np.zeros((n_pieces(old), n_pieces(new)))
    i, j, elements = shared_cells(old, new)
    table[i, j] = elements
    return table[np.ix_(old.of_rank, new.of_rank)]
