"""An n-D mesh of equal devices: each axis has a name, a size and what its rank groups see of the network."""

from __future__ import annotations

from collections.abc import Mapping
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
