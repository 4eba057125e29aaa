"""Costs of each block's choices of strategies in arrays, laid out over the layers of many shardings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from meshwright.solver.training.costs.stage_table import FloatArray, Sharding

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Rows:
    """Costs of choices of strategies on each kind of stage, borders apart: [kind, mode, row] or [kind, row], [kind].

    Behind the rows of all choices of all blocks comes one for each block with the least of each figure over its choices.
    """

    time_s: FloatArray
    kept_bytes: FloatArray
    transient_bytes: FloatArray
    static_bytes: FloatArray
    extra_s: FloatArray
    first_bucket_s: FloatArray
    capacity_bytes: FloatArray

    def with_least(self, of_row: IntArray) -> Rows:
        """The same rows with the least of each block behind them."""
        return Rows(
            with_least(self.time_s, of_row),
            with_least(self.kept_bytes, of_row),
            with_least(self.transient_bytes, of_row),
            with_least(self.static_bytes, of_row),
            with_least(self.extra_s, of_row),
            with_least(self.first_bucket_s, of_row),
            self.capacity_bytes,
        )


def with_least(figures: FloatArray, of_row: IntArray) -> FloatArray:
    """Figures [..., row] with the least of each block behind them; rows lie in the order of the blocks that ``of_row`` says."""
    starts = np.flatnonzero(np.diff(of_row, prepend=-1))
    return np.concatenate([figures, np.minimum.reduceat(figures, starts, axis=-1)], axis=-1)


@dataclass(frozen=True, eq=False)
class Laid:
    """Rows laid out over the layers of some shardings: [kind, mode, sharding, layer], [kind, sharding, layer], [kind].

    ``most_work_s`` [kind, mode, sharding] is no less than the time of a micro-batch through all layers.
    """

    time_s: FloatArray
    kept_bytes: FloatArray
    transient_bytes: FloatArray
    static_bytes: FloatArray
    extra_s: FloatArray
    capacity_bytes: FloatArray
    most_work_s: FloatArray


def joined(parts: list[Laid]) -> Laid:
    """Shardings of several layouts after one another; of capacities the largest."""
    return Laid(
        np.concatenate([part.time_s for part in parts], axis=2),
        np.concatenate([part.kept_bytes for part in parts], axis=2),
        np.concatenate([part.transient_bytes for part in parts], axis=2),
        np.concatenate([part.static_bytes for part in parts], axis=1),
        np.concatenate([part.extra_s for part in parts], axis=1),
        np.max([part.capacity_bytes for part in parts], axis=0),
        np.concatenate([part.most_work_s for part in parts], axis=2),
    )


@dataclass(frozen=True, eq=False)
class BlockChoices:
    """The choices of strategies of each distinct block that a family's shardings have, a row each, and these shardings."""

    shardings: tuple[Sharding, ...]
    rows: tuple[tuple[tuple[int, ...], ...], ...]
    main: int
    """The block that most layers have."""
    layer_block: IntArray

    @cached_property
    def of_row(self) -> IntArray:
        """[row] the block of each."""
        return np.array([block for block, choices in enumerate(self.rows) for _ in choices], np.int64)

    @cached_property
    def first_row(self) -> IntArray:
        """[block] its first row; behind the last, that of the first block's least."""
        return np.array([0, *np.cumsum([len(choices) for choices in self.rows])], np.int64)

    @cached_property
    def by_main(self) -> IntArray:
        """[choice of the main block, layer] rows, other blocks at their least."""
        n_rows = int(self.first_row[-1])
        others = n_rows + self.layer_block
        mine = self.first_row[self.main] + np.arange(len(self.rows[self.main]))
        return np.where(self.layer_block == self.main, mine[:, None], others)

    def of_shardings(self, shardings: list[Sharding]) -> IntArray:
        """[sharding, layer] rows."""
        index = [{choice: i for i, choice in enumerate(choices)} for choices in self.rows]
        rows = [
            [self.first_row[block] + index[block][choice] for block, choice in enumerate(sharding)] for sharding in shardings
        ]
        return np.array(rows, np.int64)[:, self.layer_block]

    @cached_property
    def with_main(self) -> dict[tuple[int, ...], list[Sharding]]:
        """The shardings by their choice of the main block."""
        found: dict[tuple[int, ...], list[Sharding]] = {choice: [] for choice in self.rows[self.main]}
        for sharding in self.shardings:
            found[sharding[self.main]].append(sharding)
        return found


def laid(rows: Rows, of_layer: IntArray, most_work_s: FloatArray) -> Laid:
    """Rows laid out over layers; what nothing runs beside counts to the first layer."""
    extra_s = rows.extra_s[:, of_layer]
    extra_s[:, :, 0] += rows.first_bucket_s[:, of_layer[:, 0]]
    return Laid(
        np.ascontiguousarray(rows.time_s[:, :, of_layer]),
        np.ascontiguousarray(rows.kept_bytes[:, :, of_layer]),
        np.ascontiguousarray(rows.transient_bytes[:, :, of_layer]),
        np.ascontiguousarray(rows.static_bytes[:, of_layer]),
        extra_s,
        rows.capacity_bytes,
        most_work_s,
    )
