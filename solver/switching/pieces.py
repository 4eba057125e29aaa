"""The piece of a weight that each rank of a pipeline stage holds: a box of index ranges, one range a dim."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.model.experts import expert_dims
from meshwright.costmodels.model.operators import Operator, Weight
from meshwright.solver.answer.stage import Axes
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

    tp splits the strategy's dims, or the longest of weights that ranks use whole and store split, ep the experts;
    ``is_state_sharded`` adds ZeRO's split over the dp x cp ranks that hold the same of it: of the longest dim that is left, as
    even as can be; where ``shard_ranks`` says so, over so many neighbours of them.
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
    if strategy.stores_split and set(weight.dims).isdisjoint(strategy.dims()):
        place = max(range(len(cut)), key=lambda i: (cut[i].longest, -i))
        cut[place] = cut[place].split(axes.tp, in_tp, Rounding.EVEN)
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


# The moves of a tensor whose pieces change hands: elements by device, exactly, with senders chosen near and evenly.
#
# A device that lacks elements gets them from devices of its own node that hold them, if there are any, otherwise from all that
# hold them, equally much from each.

FloatArray = npt.NDArray[np.float64]

LOST = -1
"""Device of a rank that is no more."""


@dataclass(frozen=True, eq=False)
class Held:
    """A tensor's pieces on devices: ``device[k]`` holds piece ``piece[k]``; no device twice."""

    pieces: Pieces
    device: IntArray
    piece: IntArray

    @property
    def left(self) -> Held:
        """Without the ranks whose device is lost."""
        here = self.device != LOST
        return Held(self.pieces, self.device[here], self.piece[here])


@dataclass(frozen=True, eq=False)
class SwitchTraffic:
    """By device: what it keeps in place, receives from its own node, over the network and from storage (no device holds it any
    more), and what it sends to its own node and over the network."""

    kept: FloatArray
    from_node: FloatArray
    from_network: FloatArray
    from_storage: FloatArray
    to_node: FloatArray
    to_network: FloatArray

    @staticmethod
    def none(n_devices: int) -> SwitchTraffic:
        """No traffic."""
        return SwitchTraffic(*(np.zeros(n_devices) for _ in fields(SwitchTraffic)))

    def plus(self, other: SwitchTraffic, *, times: float = 1.0) -> SwitchTraffic:
        """With another tensor's traffic, so many times."""
        return SwitchTraffic(*(getattr(self, each.name) + times * getattr(other, each.name) for each in fields(SwitchTraffic)))

    @property
    def received(self) -> FloatArray:
        """All that each device lacks."""
        return self.from_node + self.from_network + self.from_storage

    @property
    def sent(self) -> FloatArray:
        """All that each device sends."""
        return self.to_node + self.to_network


def traffic(old: Held, new: Held, node_of: IntArray) -> SwitchTraffic:
    """Elements that move so that every device of ``new`` holds its piece; ``node_of`` each device is its node's number."""
    old = old.left
    cells = _Cells(*shared_cells(old.pieces, new.pieces), n_pieces(old.pieces), n_pieces(new.pieces))
    own_cell = _own_cells(old, new, cells, len(node_of))
    own = np.where(own_cell >= 0, cells.elements[own_cell], 0)
    near = _near(old, new, cells, node_of)
    served = own_cell[own_cell >= 0] * near.n_nodes + node_of[new.device[own_cell >= 0]]
    lacking = near.receivers - _counts(near.cell * near.n_nodes + near.node, served)
    holders = np.bincount(old.piece, minlength=cells.n_old)[cells.old]
    far = np.bincount(new.piece, minlength=cells.n_new)[cells.new] - np.bincount(near.cell, near.receivers, len(holders))

    to_node = np.bincount(near.old_group, cells.elements[near.cell] * lacking / near.holders, len(near.old_groups.key))
    from_node = np.bincount(near.new_group, cells.elements[near.cell], len(near.new_groups.key))[near.new_groups.of_rank]
    to_network = np.bincount(cells.old, cells.elements * far / np.maximum(1, holders), cells.n_old)
    whole = np.bincount(cells.new, cells.elements, cells.n_new)[new.piece]
    gone = np.bincount(cells.new, cells.elements * (holders == 0), cells.n_new)[new.piece]

    result = SwitchTraffic.none(len(node_of))
    result.kept[new.device] = own
    result.to_node[old.device] = to_node[near.old_groups.of_rank]
    result.to_network[old.device] = to_network[old.piece]
    result.from_node[new.device] = from_node - own
    result.from_storage[new.device] = gone
    result.from_network[new.device] = whole - from_node - gone
    return result


@dataclass(frozen=True, eq=False)
class _Cells:
    """Pairs of an old and a new piece that share elements, and how many pieces there are."""

    old: IntArray
    new: IntArray
    elements: IntArray
    n_old: int
    n_new: int


def _own_cells(old: Held, new: Held, cells: _Cells, n_devices: int) -> IntArray:
    """For each device of ``new``, the cell that its own old piece shares with its new one; -1 for none."""
    old_piece = np.full(n_devices, -1, np.int64)
    old_piece[old.device] = old.piece
    mine = old_piece[new.device]
    keys = cells.old * cells.n_new + cells.new
    order = np.argsort(keys)
    at = _index(keys[order], mine * cells.n_new + new.piece)
    return np.where((mine >= 0) & (at >= 0), order[at], -1)


@dataclass(frozen=True, eq=False)
class _Near:
    """Cells and nodes such that devices of the node hold the cell and others need it: how many do each."""

    cell: IntArray
    node: IntArray
    holders: IntArray
    receivers: IntArray
    old_group: IntArray
    new_group: IntArray
    old_groups: _Groups
    new_groups: _Groups
    n_nodes: int


def _near(old: Held, new: Held, cells: _Cells, node_of: IntArray) -> _Near:
    """All such pairs, found from whichever side has fewer of them."""
    n_nodes = int(node_of.max()) + 1
    old_groups, new_groups = _Groups.of(old, node_of, n_nodes), _Groups.of(new, node_of, n_nodes)
    of_old = np.bincount(cells.old, minlength=cells.n_old)[old_groups.key // n_nodes].sum()
    of_new = np.bincount(cells.new, minlength=cells.n_new)[new_groups.key // n_nodes].sum()
    if of_old <= of_new:
        cell, old_group, new_group = _matched(old_groups, new_groups, cells.old, cells.new, n_nodes)
    else:
        cell, new_group, old_group = _matched(new_groups, old_groups, cells.new, cells.old, n_nodes)
    return _Near(
        cell=cell,
        node=old_groups.key[old_group] % n_nodes,
        holders=old_groups.count[old_group],
        receivers=new_groups.count[new_group],
        old_group=old_group,
        new_group=new_group,
        old_groups=old_groups,
        new_groups=new_groups,
        n_nodes=n_nodes,
    )


@dataclass(frozen=True, eq=False)
class _Groups:
    """Devices of one node with one piece: sorted keys ``piece x nodes + node``, how many they are, and each device's group."""

    key: IntArray
    count: IntArray
    of_rank: IntArray

    @staticmethod
    def of(held: Held, node_of: IntArray, n_nodes: int) -> _Groups:
        keys, inverse, counts = np.unique(held.piece * n_nodes + node_of[held.device], return_inverse=True, return_counts=True)
        return _Groups(keys, counts, inverse.reshape(-1))


def _matched(
    mine: _Groups, others: _Groups, mine_of_cell: IntArray, other_of_cell: IntArray, n_nodes: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Every (cell, my group, other group) of one node; cells of each of my groups are looked up among the others'."""
    order = np.argsort(mine_of_cell, kind="stable")
    starts = np.searchsorted(mine_of_cell[order], mine.key // n_nodes, side="left")
    count = np.searchsorted(mine_of_cell[order], mine.key // n_nodes, side="right") - starts
    group = np.repeat(np.arange(len(mine.key)), count)
    cell = order[np.arange(len(group)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(starts, count)]
    wanted = other_of_cell[cell] * n_nodes + mine.key[group] % n_nodes
    other = _index(others.key, wanted)
    found = other >= 0
    return cell[found], group[found], other[found]


def _counts(keys: IntArray, values: IntArray) -> IntArray:
    """Return the number of times that each key occurs among the values, all of which are keys."""
    order = np.argsort(keys)
    counts = np.zeros(len(keys), np.int64)
    counts[order] = np.bincount(_index(keys[order], values), minlength=len(keys))
    return counts


def _index(keys: IntArray, wanted: IntArray) -> IntArray:
    """Where each wanted value is among sorted ``keys``; -1 where it is not."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, at, -1)
