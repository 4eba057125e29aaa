"""Every way between two layouts, played through with real blocks: each step leaves each rank with the block that its layout
says, and moves as many elements as its transfer says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from meshwright.costmodels.network.collectives import Collective
from meshwright.solver.strategies.device_mesh import DeviceMesh, TensorLayout, TensorShape, layouts
from meshwright.solver.strategies.resharding import Resharding, Transfer, TransferTimes
from tests.unit.solver.strategies.meshes import mesh_of

Block = npt.NDArray[np.float64]
Blocks = dict[tuple[int, ...], Block]

CASES = [((8, 8), (2, 2)), ((8, 16), (4, 2)), ((8, 8, 8), (2, 2)), ((8, 8), (2, 2, 2))]


def ranks(mesh: DeviceMesh) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(size) for size in mesh.sizes))


def block_of(tensor: Block, layout: TensorLayout, mesh: DeviceMesh, rank: tuple[int, ...]) -> Block:
    """A rank's block of a tensor: contiguous in each dim, the first axis that splits it varying slowest."""
    for position, axes in enumerate(layout.splits):
        for axis in axes:
            tensor = np.split(tensor, mesh.sizes[axis], axis=position)[rank[axis]]
    return tensor


def placed(tensor: Block, layout: TensorLayout, mesh: DeviceMesh, rng: np.random.Generator) -> Blocks:
    """Blocks of all ranks; over partial axes random summands that add up to the tensor."""
    blocks: Blocks = {}
    for rank in ranks(mesh):
        own = block_of(tensor, layout, mesh, rank)
        key = tuple(0 if axis in layout.partial else i for axis, i in enumerate(rank))
        if key == rank:
            blocks[rank] = own.copy()
        else:
            blocks[rank] = np.round(rng.normal(size=own.shape), 3)
    for rank in ranks(mesh):
        key = tuple(0 if axis in layout.partial else i for axis, i in enumerate(rank))
        if key != rank:
            blocks[key] = blocks[key] - blocks[rank]
    # Ranks that differ only in axes named nowhere hold copies.
    free = [a for a in range(len(mesh.sizes)) if a not in (*layout.axes_of(), *layout.partial)]
    return {rank: blocks[tuple(0 if a in free else i for a, i in enumerate(rank))] for rank in ranks(mesh)}


def group(mesh: DeviceMesh, rank: tuple[int, ...], axis: int) -> list[tuple[int, ...]]:
    return [(*rank[:axis], i, *rank[axis + 1 :]) for i in range(mesh.sizes[axis])]


def stepped(before: TensorLayout, after: TensorLayout, transfer: Transfer | None, blocks: Blocks, mesh: DeviceMesh) -> Blocks:
    """Blocks after one step."""
    if transfer is not None and transfer.collective is Collective.SEND_RECV:
        a, b = transfer.axes
        if {a, b} <= {x for split in before.splits for x in split} and mesh.sizes[a] != mesh.sizes[b]:
            position = next(p for p, split in enumerate(before.splits) if a in split)
            return {rank: blocks[_holder(rank, before, after, position, mesh)] for rank in blocks}
        return {rank: blocks[tuple(rank[{a: b, b: a}.get(i, i)] for i in range(len(rank)))] for rank in blocks}
    moved = [a for a in range(len(mesh.sizes)) if _place(before, a) != _place(after, a)]
    assert len(moved) == 1
    axis = moved[0]
    source, target = _place(before, axis), _place(after, axis)
    result: Blocks = {}
    for rank in blocks:
        members = [blocks[member] for member in group(mesh, rank, axis)]
        if source == "partial":
            whole = sum(members[1:], members[0])
        elif isinstance(source, int):
            whole = None
        else:
            whole = blocks[rank]
        if isinstance(source, int) and isinstance(target, int):
            parts = [np.split(member, mesh.sizes[axis], axis=target)[rank[axis]] for member in members]
            result[rank] = np.concatenate(parts, axis=source)
            continue
        if whole is None:
            whole = np.concatenate(members, axis=int(source))
        if isinstance(target, int):
            whole = np.split(whole, mesh.sizes[axis], axis=target)[rank[axis]]
        if target == "partial" and rank[axis]:
            whole = np.zeros_like(whole)
        result[rank] = whole
    return result


def _holder(
    rank: tuple[int, ...], before: TensorLayout, after: TensorLayout, position: int, mesh: DeviceMesh
) -> tuple[int, ...]:
    """The rank that holds, before, the block that this one has after, when axes on one dim change places."""
    index = 0
    for axis in after.splits[position]:
        index = index * mesh.sizes[axis] + rank[axis]
    found = list(rank)
    for axis in reversed(before.splits[position]):
        index, found[axis] = divmod(index, mesh.sizes[axis])
    return tuple(found)


def _place(layout: TensorLayout, axis: int) -> int | str:
    for position, axes in enumerate(layout.splits):
        if axis in axes:
            return position
    return "partial" if axis in layout.partial else "whole"


def summed(blocks: Blocks, layout: TensorLayout, mesh: DeviceMesh, rank: tuple[int, ...]) -> Block:
    """The sum of a rank's block over its partial axes."""
    over = itertools.product(*(range(mesh.sizes[a]) if a in layout.partial else (rank[a],) for a in range(len(mesh.sizes))))
    parts = [blocks[other] for other in over]
    return sum(parts[1:], parts[0])


def elements_sent(before: Blocks, layout: TensorLayout, transfer: Transfer, mesh: DeviceMesh) -> float:
    """Elements a rank sends in a ring: n - 1 steps of a share, twice for an all-reduce; its whole block in a permute."""
    n = mesh.sizes[transfer.axes[0]]
    held = next(iter(before.values())).size
    match transfer.collective:
        case Collective.ALL_GATHER:
            return (n - 1) * held
        case Collective.REDUCE_SCATTER | Collective.ALL_TO_ALL:
            return (n - 1) * held / n
        case Collective.ALL_REDUCE:
            return 2 * (n - 1) * held / n
        case _:
            return held


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(("sizes", "axes"), CASES)
def test_every_way_leads_to_the_blocks_of_its_layout(sizes: tuple[int, ...], axes: tuple[int, ...]) -> None:
    mesh, rng = mesh_of(*axes), np.random.default_rng(0)
    shape = TensorShape(sizes, 1.0)
    positions = tuple(range(len(sizes)))
    table = Resharding(TransferTimes(mesh)).between(shape, positions)
    tensor = np.arange(math.prod(sizes), dtype=float).reshape(sizes)
    known = list(layouts(shape, mesh.sizes, positions))
    pairs = [(s, t) for s in known for t in known]
    for index in rng.choice(len(pairs), size=min(len(pairs), 400), replace=False).tolist():
        source, target = pairs[index]
        here, blocks = source, placed(tensor, source, mesh, rng)
        seconds = 0.0
        for after, transfer in table.way(source, target):
            if transfer is not None:
                assert transfer.sent_bytes(mesh) == pytest.approx(elements_sent(blocks, here, transfer, mesh))
                seconds += Resharding(TransferTimes(mesh)).times.seconds(transfer)
            blocks = stepped(here, after, transfer, blocks, mesh)
            here = after
        assert here == target
        assert seconds == pytest.approx(table.table([source], [target])[0, 0])
        for rank in ranks(mesh):
            np.testing.assert_allclose(summed(blocks, target, mesh, rank), block_of(tensor, target, mesh, rank), atol=1e-9)


def test_no_way_is_dearer_than_through_the_whole_tensor() -> None:
    mesh = mesh_of(4, 2)
    shape = TensorShape((16, 32, 64), 2.0)
    table = Resharding(TransferTimes(mesh)).between(shape, (0, 1, 2))
    whole = TensorLayout(((), (), ()))
    through = table.table(list(table.index), [whole]) + table.table([whole], list(table.index))
    assert (table.seconds <= through + 1e-15).all()
    assert np.isfinite(table.seconds).all()


def test_slicing_moves_nothing_and_gathering_does() -> None:
    mesh = mesh_of(4, 2)
    table = Resharding(TransferTimes(mesh)).between(TensorShape((16, 32), 2.0), (0, 1))
    whole, split = TensorLayout(((), ())), TensorLayout(((0,), (1,)))
    assert table.path(whole, split) == ()
    assert [transfer.collective for transfer in table.path(split, whole)] == [Collective.ALL_GATHER] * 2


def test_split_rows_of_equal_axes_are_exchanged_by_a_permute() -> None:
    mesh = mesh_of(4, 4)
    table = Resharding(TransferTimes(mesh)).between(TensorShape((64, 64), 2.0), (0,))
    path = table.path(TensorLayout(((0,), ())), TensorLayout(((1,), ())))
    assert [transfer.collective for transfer in path] == [Collective.SEND_RECV]
