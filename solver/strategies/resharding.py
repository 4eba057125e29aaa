"""Resharding: the cheapest way from any layout of a tensor to any other, as steps of one collective each.

A step moves one axis: all-gather, slice, all-to-all, reduce-scatter, all-reduce; or exchanges two axes of equal size, or the
order of two axes on one dim, by a collective permute. An axis can only be gathered from the minor end of a dim, and joins a
dim at its minor end: blocks stay contiguous (the order of mesh axes in DTensor placements and GSPMD device assignments).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.network.collectives import Collective, bytes_per_rank, collective_s
from meshwright.solver.strategies.device_mesh import DeviceMesh, TensorLayout, TensorShape, layouts

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective over one axis, or a permute over two: ``message_bytes`` as `costmodels.network.collectives` defines it."""

    collective: Collective
    axes: tuple[int, ...]
    message_bytes: float

    def sent_bytes(self, mesh: DeviceMesh) -> float:
        """Bytes that each rank sends."""
        return float(bytes_per_rank(self.collective, mesh.axes[self.axes[0]].size, self.message_bytes))


class TransferTimes:
    """Seconds of transfers on a mesh, each computed once."""

    def __init__(self, mesh: DeviceMesh):
        self.mesh = mesh
        self._known: dict[Transfer, float] = {}

    def seconds(self, transfer: Transfer) -> float:
        """Seconds of one transfer; a permute over two axes takes as long as over the slower one."""
        if transfer not in self._known:
            self._known[transfer] = max(
                float(collective_s(transfer.collective, transfer.message_bytes, self.mesh.axes[axis].topology))
                for axis in transfer.axes
            )
        return self._known[transfer]


@dataclass(frozen=True)
class ReshardingTable:
    """Cheapest ways between layouts of one tensor.

    seconds   (layouts, layouts), from row to column
    followed  (layouts, layouts), the layout after the first step; -1 on the diagonal
    """

    index: dict[TensorLayout, int]
    seconds: FloatArray
    followed: npt.NDArray[np.int64]
    steps: dict[tuple[int, int], Transfer | None]

    def way(self, source: TensorLayout, target: TensorLayout) -> Iterator[tuple[TensorLayout, Transfer | None]]:
        """The cheapest way, step by step: the layout after it and its transfer, None where nothing moves."""
        known = list(self.index)
        here, there = self.index[source], self.index[target]
        while here != there:
            after = int(self.followed[here, there])
            yield known[after], self.steps[here, after]
            here = after

    def path(self, source: TensorLayout, target: TensorLayout) -> tuple[Transfer, ...]:
        """The collectives of the cheapest way, in order."""
        return tuple(transfer for _, transfer in self.way(source, target) if transfer is not None)

    def table(self, sources: Sequence[TensorLayout], targets: Sequence[TensorLayout]) -> FloatArray:
        """Seconds from each source to each target, shape (sources, targets)."""
        rows = np.array([self.index[layout] for layout in sources], dtype=np.int64)
        columns = np.array([self.index[layout] for layout in targets], dtype=np.int64)
        return self.seconds[rows[:, None], columns[None, :]]


class Resharding:
    """Resharding tables on a mesh, each built once."""

    def __init__(self, times: TransferTimes):
        self.times = times
        self._tables: dict[tuple[TensorShape, tuple[int, ...]], ReshardingTable] = {}

    def between(self, shape: TensorShape, positions: Sequence[int]) -> ReshardingTable:
        """The table of a tensor whose dims at ``positions`` may be split."""
        key = (shape, tuple(sorted(set(positions))))
        if key not in self._tables:
            self._tables[key] = _build(shape, key[1], self.times.mesh)
        return self._tables[key]


def _build(shape: TensorShape, positions: tuple[int, ...], mesh: DeviceMesh) -> ReshardingTable:
    sizes = mesh.sizes
    known = list(layouts(shape, sizes, positions))
    index = {layout: i for i, layout in enumerate(known)}
    steps = {
        (i, index[after]): transfer
        for i, layout in enumerate(known)
        for after, transfer in _moves(layout, shape, positions, sizes)
        if after in index
    }
    seconds = np.full((len(known), len(known)), np.inf)
    _fill_in(seconds, steps, mesh)
    followed = np.where(np.isfinite(seconds), np.arange(len(known)), -1)
    np.fill_diagonal(seconds, 0.0)
    np.fill_diagonal(followed, -1)
    # All cheapest paths (Floyd 1962, Algorithm 97); only strict gains are taken, so equal ways keep the first found.
    for k in range(len(known)):
        through = seconds[:, k, None] + seconds[None, k, :]
        better = through < seconds
        seconds = np.where(better, through, seconds)
        followed = np.where(better, followed[:, k, None], followed)
    return ReshardingTable(index, seconds, followed.astype(np.int64), steps)


def _fill_in(seconds: FloatArray, steps: dict[tuple[int, int], Transfer | None], mesh: DeviceMesh) -> None:
    """Times of single steps, all of one collective and axis at once."""
    alike: dict[tuple[Collective, int], list[tuple[int, int, float]]] = {}
    for (i, j), transfer in steps.items():
        if transfer is None:
            seconds[i, j] = 0.0
        else:
            for axis in transfer.axes:
                alike.setdefault((transfer.collective, axis), []).append((i, j, transfer.message_bytes))
    for (collective, axis), entries in alike.items():
        sizes = np.array([size for _, _, size in entries])
        times = np.asarray(collective_s(collective, sizes, mesh.axes[axis].topology))
        rows, columns = np.array([i for i, _, _ in entries]), np.array([j for _, j, _ in entries])
        known = np.where(np.isfinite(seconds[rows, columns]), seconds[rows, columns], 0.0)
        seconds[rows, columns] = np.maximum(known, times)


def _moves(
    layout: TensorLayout, shape: TensorShape, positions: tuple[int, ...], mesh: Sequence[int]
) -> Iterator[tuple[TensorLayout, Transfer | None]]:
    """Every layout that one step leads to, and its transfer, None for a step that moves nothing."""
    held = shape.local_bytes(layout, mesh)
    used = {*layout.axes_of(), *layout.partial}
    for axis, size in enumerate(mesh):
        if axis in used or size == 1:
            continue
        for position in positions:
            yield _joined(layout, position, axis), None
        # Every rank but the first of the axis puts zeros: a whole tensor is a sum of partial ones.
        yield TensorLayout(layout.splits, tuple(sorted((*layout.partial, axis)))), None
    for axis in layout.partial:
        summed = TensorLayout(layout.splits, tuple(a for a in layout.partial if a != axis))
        yield summed, Transfer(Collective.ALL_REDUCE, (axis,), held)
        for position in positions:
            yield _joined(summed, position, axis), Transfer(Collective.REDUCE_SCATTER, (axis,), held)
    for position in positions:
        if not layout.splits[position]:
            continue
        axis = layout.splits[position][-1]
        freed = _replaced(layout, position, layout.splits[position][:-1])
        yield freed, Transfer(Collective.ALL_GATHER, (axis,), held * mesh[axis])
        for other in positions:
            if other != position:
                yield _joined(freed, other, axis), Transfer(Collective.ALL_TO_ALL, (axis,), held)
    yield from _permutes(layout, held, mesh)


def _permutes(layout: TensorLayout, held_bytes: float, mesh: Sequence[int]) -> Iterator[tuple[TensorLayout, Transfer]]:
    """Layouts with the same blocks on other ranks."""
    axes = layout.axes_of()
    for a in range(len(mesh)):
        for b in range(a + 1, len(mesh)):
            same_dim = any(a in split and b in split for split in layout.splits)
            one_is_free = (a in axes) != (b in axes) and not {a, b} & set(layout.partial)
            both_split = a in axes and b in axes
            if not (same_dim or (mesh[a] == mesh[b] and (one_is_free or both_split))):
                continue
            exchanged = {a: b, b: a}
            splits = tuple(tuple(exchanged.get(axis, axis) for axis in split) for split in layout.splits)
            yield TensorLayout(splits, layout.partial), Transfer(Collective.SEND_RECV, (a, b), held_bytes)


def _joined(layout: TensorLayout, position: int, axis: int) -> TensorLayout:
    return _replaced(layout, position, (*layout.splits[position], axis))


def _replaced(layout: TensorLayout, position: int, axes: tuple[int, ...]) -> TensorLayout:
    return TensorLayout((*layout.splits[:position], axes, *layout.splits[position + 1 :]), layout.partial)
