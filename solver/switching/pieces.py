"""The piece of a weight that each rank of a pipeline stage holds: a box of index ranges, one range a dim."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.model.expert_parallel import expert_dims
from meshwright.costmodels.model.operators import Operator, Weight
from meshwright.solver.answer.axes import Axes
from meshwright.solver.blocks.tp_strategies import Strategy

IntArray = npt.NDArray[np.int64]


class Rounding(Enum):
    """Where the borders of pieces fall when a range does not divide."""

    UP = "equal pieces, rounded up; the last are short or empty, as padding leaves them"
    EVEN = "pieces that differ by one at most"


@dataclass(frozen=True, eq=False)
class Pieces:
    """The cut of a tensor, and the holders of its pieces.

    bounds    for each dim, the (first, end) of each of its ranges; every combination of ranges, one a dim, is a piece
    of_rank   for each rank of the stage, the number of its piece: the ranges' numbers as digits, the last dim's changing first
    """

    bounds: tuple[IntArray, ...]
    of_rank: IntArray


def stored_pieces(
    operator: Operator,
    weight: Weight,
    sizes: Mapping[str, int],
    *,
    strategy: Strategy,
    axes: Axes,
    is_state_sharded: bool,
    shard_ranks: int | None = None,
) -> Pieces:
    """Pieces of a weight, or of its optimizer state, on the ranks of a stage in Megatron's order.

    tp splits the strategy's dims, ep the experts; ``is_state_sharded`` adds ZeRO's split over the dp x cp ranks that hold the
    same of it: of the longest dim that is left, as even as can be; where ``shard_ranks`` says so, over so many
    neighbours of them.
    """
    ranks = np.arange(axes.dp * axes.cp * axes.tp, dtype=np.int64)
    in_tp, in_state = ranks % axes.tp, ranks // axes.tp
    cut = [_Dim.whole(sizes[dim], len(ranks)) for dim in weight.dims]
    for dim in dict.fromkeys(weight.dims):
        if dim in strategy.dims():
            place = weight.dims.index(dim)
            # Key/value heads fewer than ranks: several ranks hold a copy of one.
            count = min(axes.tp, sizes[dim])
            cut[place] = cut[place].split(count, in_tp * count // axes.tp, Rounding.UP)
    experts = [dim for dim in expert_dims(operator) if dim in weight.dims]
    within = axes.tp if axes.etp is None else axes.etp
    in_place = ranks // within
    for dim in experts:
        place = weight.dims.index(dim)
        cut[place] = cut[place].split(axes.ep, in_place % axes.ep, Rounding.EVEN)
    if is_state_sharded:
        ep, holder, holders = (axes.ep, in_place, len(ranks) // within) if experts else (1, in_state, axes.dp * axes.cp)
        place = max(range(len(cut)), key=lambda i: (cut[i].longest, -i))
        shards = shard_ranks or holders // ep
        cut[place] = cut[place].split(shards, holder // ep % shards, Rounding.EVEN)
    numbers = np.zeros(len(ranks), np.int64)
    for dim_cut in cut:
        numbers = numbers * len(dim_cut.bounds) + dim_cut.of_rank
    return Pieces(tuple(dim_cut.bounds for dim_cut in cut), numbers)


def shared_cells(old: Pieces, new: Pieces) -> tuple[IntArray, IntArray, IntArray]:
    """Every pair of an old and a new piece that share elements: numbers of the old, of the new, and how many elements."""
    cells = (np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, np.int64))
    for old_bounds, new_bounds in zip(old.bounds, new.bounds, strict=True):
        i, j, length = _overlaps(old_bounds, new_bounds)
        cells = (
            np.add.outer(cells[0] * len(old_bounds), i).ravel(),
            np.add.outer(cells[1] * len(new_bounds), j).ravel(),
            np.multiply.outer(cells[2], length).ravel(),
        )
    return cells


def _overlaps(old: IntArray, new: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Pairs of ranges of one dim, each list ascending and without gaps, that overlap, and by how much."""
    first = np.searchsorted(old[:, 1], new[:, 0], side="right")
    end = np.searchsorted(old[:, 0], new[:, 1], side="left")
    count = np.maximum(0, end - first)
    j = np.repeat(np.arange(len(new)), count)
    i = np.arange(len(j)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    length = np.minimum(old[i, 1], new[j, 1]) - np.maximum(old[i, 0], new[j, 0])
    some = length > 0
    return i[some], j[some], length[some]


@dataclass(frozen=True, eq=False)
class _Dim:
    """Ranges of one dim, and the number of the one that each rank holds."""

    bounds: IntArray
    of_rank: IntArray

    @staticmethod
    def whole(size: int, n_ranks: int) -> _Dim:
        return _Dim(np.array([[0, size]], np.int64), np.zeros(n_ranks, np.int64))

    @property
    def longest(self) -> int:
        return int((self.bounds[:, 1] - self.bounds[:, 0]).max())

    def split(self, count: int, index: IntArray, rounding: Rounding) -> _Dim:
        """Each range cut into ``count``, of which a rank takes the one that ``index`` names."""
        first, length = self.bounds[:, :1], self.bounds[:, 1:] - self.bounds[:, :1]
        marks = np.arange(count + 1, dtype=np.int64)
        rounded_up = np.minimum(marks * -(-length // count), length)
        borders = first + (rounded_up if rounding is Rounding.UP else marks * length // count)
        bounds = np.stack([borders[:, :-1].ravel(), borders[:, 1:].ravel()], axis=1)
        return _Dim(bounds, self.of_rank * count + index)


def n_pieces(pieces: Pieces) -> int:
    """Return the number of pieces."""
    return math.prod(len(bounds) for bounds in pieces.bounds)
