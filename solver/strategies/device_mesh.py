"""An n-D mesh of equal devices: each axis has a name, a size and what its rank groups see of the network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshwright.costmodels.cluster.cluster import Cluster, Device, GroupTopology, group_topology
from meshwright.costmodels.errors import ClusterError

MAX_AXES = 4
"""Axes of a mesh at most: the strategies of an operator are the product of what each axis may do."""


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """One axis of a mesh; ``topology`` describes the groups of ranks that differ only in their coordinate on it."""

    name: str
    topology: GroupTopology

    @property
    def size(self) -> int:
        """Ranks along the axis."""
        return self.topology.n


@dataclass(frozen=True, slots=True)
class DeviceMesh:
    """Axes from outer to inner, and the device at every point."""

    axes: tuple[MeshAxis, ...]
    device: Device

    def __post_init__(self) -> None:
        names = [axis.name for axis in self.axes]
        if not 1 <= len(names) <= MAX_AXES:
            raise ClusterError("a mesh has one axis or a few", given=len(names), allowed=f"1 to {MAX_AXES}")
        if len(set(names)) < len(names):
            raise ClusterError("names of mesh axes must differ", given=names)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Size of each axis."""
        return tuple(axis.size for axis in self.axes)


def device_mesh(cluster: Cluster, degrees: Mapping[str, int]) -> DeviceMesh:
    """The mesh of the first ranks of a cluster, ``degrees`` naming its axes from outer to inner.

    Raises ClusterError when the cluster has too few devices, or devices of several kinds.
    """
    devices = {group.node.device.name: group.node.device for group in cluster.groups}
    if len(devices) > 1:
        raise ClusterError(
            "a mesh needs equal devices",
            given=", ".join(sorted(devices)),
            remedy="shard over one node group of the cluster",
        )
    axes: list[MeshAxis] = []
    stride = 1
    for name, size in reversed(tuple(degrees.items())):
        if size < 1:
            raise ClusterError(f"mesh axis {name!r} needs at least one rank", given=size, allowed="1 or more")
        axes.append(MeshAxis(name, group_topology(cluster, n=size, stride=stride)))
        stride *= size
    return DeviceMesh(tuple(reversed(axes)), next(iter(devices.values())))


# The layout of a tensor on a mesh: which axes split which of its dims, and over which axes it still has to be summed.


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Placement of a tensor. A rank holds one block of it; axes named nowhere hold copies.

    splits   for each dim of the tensor, by position, the mesh axes that split it, from major to minor
    partial  axes over which the blocks are summands of the tensor, ascending
    """

    splits: tuple[tuple[int, ...], ...]
    partial: tuple[int, ...] = ()

    def axes_of(self) -> tuple[int, ...]:
        """Every axis that splits some dim."""
        return tuple(axis for axes in self.splits for axis in axes)


@dataclass(frozen=True, slots=True)
class TensorShape:
    """The facts about a tensor that resharding depends on: sizes of the dims by position, and bytes of an element.

    ``routed`` marks that the last position is not a dim of the tensor but the expert that each row is routed to: splitting
    it puts every row where its expert is. It multiplies nothing; rows spread evenly over experts.
    """

    sizes: tuple[int, ...]
    element_bytes: float
    routed: bool = False

    @property
    def total_bytes(self) -> float:
        """Bytes of the whole tensor."""
        return math.prod(self.sizes[:-1] if self.routed else self.sizes) * self.element_bytes

    def local_bytes(self, layout: TensorLayout, mesh: Sequence[int]) -> float:
        """Bytes of one rank's block; ``mesh`` has the sizes of the axes."""
        return self.total_bytes / math.prod(mesh[axis] for axis in layout.axes_of())

    def holds(self, layout: TensorLayout, mesh: Sequence[int]) -> bool:
        """Return True if every split is into equal parts."""
        return all(
            size % math.prod(mesh[axis] for axis in axes) == 0 for size, axes in zip(self.sizes, layout.splits, strict=True)
        )


def layouts(shape: TensorShape, mesh: Sequence[int], positions: Sequence[int]) -> Iterator[TensorLayout]:
    """Every layout that splits only dims at ``positions``, each split in every order of its axes, partial sums included."""
    whole, partial = -1, -2
    for uses in itertools.product((whole, partial, *positions), repeat=len(mesh)):
        if any(use != whole and mesh[axis] == 1 for axis, use in enumerate(uses)):
            continue
        by_position = [tuple(a for a, use in enumerate(uses) if use == p) for p in range(len(shape.sizes))]
        summed = tuple(a for a, use in enumerate(uses) if use == partial)
        for ordered in itertools.product(*(itertools.permutations(axes) for axes in by_position)):
            layout = TensorLayout(ordered, summed)
            if shape.holds(layout, mesh):
                yield layout
