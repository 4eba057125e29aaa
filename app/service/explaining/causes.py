"""A cause for which a run is slower or faster than predicted: a change of what was asked that the cost models price."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from meshwright.costmodels.cluster.cluster import Cluster, NodeType
from meshwright.solver.answer.predicted import Predicted


class PricedCase(Protocol):
    """A command under one change of what was asked."""

    def predicted(self) -> Predicted | None:
        """Return its figures, None where it would not fit; raises InvalidInputError where it can't be."""


Case = TypeVar("Case", bound=PricedCase)


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a cause can go.

    most          the largest factor that makes sense
    least, usual  the range of factors that are usual; others are named later
    """

    most: float
    least: float
    usual: float


@dataclass(frozen=True, slots=True)
class SpeedCause(Generic[Case]):
    """A cause, and the one check that tells it.

    name     its name in documents
    change   the case under it, by a factor where it has an extent; None where it does not apply
    said     what it is, in words, of the case before the change
    check    what to look at, in two minutes
    extent   how far it can go; None of one that is there or is not
    flags    flags of a command that make it likely: no figure takes them into account
    """

    name: str
    change: Callable[[Case, float], Case | None]
    said: Callable[[Case, float], str]
    check: str
    extent: Callable[[Case], Extent] | None = None
    flags: frozenset[str] = frozenset()


def words(text: str) -> Callable[[PricedCase, float], str]:
    """Return what says the same of every case; ``{}`` in it stands for the factor."""
    return lambda _, factor: text.format(f"{factor:.2g}")


def with_nodes(cluster: Cluster, change: Callable[[NodeType], NodeType]) -> Cluster:
    """Return the cluster with each of its nodes changed."""
    return replace(cluster, groups=tuple(replace(group, node=change(group.node)) for group in cluster.groups))


# Links that are slower than the cluster says, and the slowest that they are in practice.

SLOWEST_NETWORK_BYTES_PER_S = 10e9 / 8
"""One port of 10 Gb/s Ethernet: the management network of servers whose fast cards are not used."""
SLOWEST_LINK_BYTES_PER_S = 5e9
"""Two devices that exchange through host memory over PCIe 3.0 (12 GB/s one way, written and read again)."""
FALL_BACK_BYTES_PER_S = 100e9 / 8
"""The fastest Ethernet of a node over which TCP is usual where RDMA fails."""


def slower_network(cluster: Cluster, factor: float) -> Cluster:
    """Return the cluster whose network between nodes is so many times slower."""
    return with_nodes(
        cluster, lambda node: replace(node, inter=replace(node.inter, bytes_per_s=node.inter.bytes_per_s / factor))
    )


def slower_links(cluster: Cluster, factor: float) -> Cluster:
    """Return the cluster whose links inside nodes are so many times slower."""
    return with_nodes(
        cluster, lambda node: replace(node, intra=replace(node.intra, bytes_per_s=node.intra.bytes_per_s / factor))
    )


def network_extent(cluster: Cluster) -> Extent:
    """Return how much slower a network may be: clusters of a kind differ by 3 (its prior), TCP in place of RDMA by far more."""
    most = max(group.node.inter.bytes_per_s for group in cluster.groups) / SLOWEST_NETWORK_BYTES_PER_S
    return Extent(max(most, 1.0), 2.0, max(most, 2.0))


def links_extent(cluster: Cluster) -> Extent:
    """Return how much slower links inside a node may be: PCIe in place of NVLink is 5 to 20 times slower."""
    most = max(group.node.intra.bytes_per_s for group in cluster.groups) / SLOWEST_LINK_BYTES_PER_S
    return Extent(max(most, 1.0), 4.0, 20.0)


def network_said(cluster: Cluster, factor: float) -> str:
    """Say what speed a slower network has."""
    inter_bytes_per_s = cluster.groups[0].node.inter.bytes_per_s
    left = inter_bytes_per_s / factor
    fallen = ": as TCP over Ethernet in place of RDMA" if left <= FALL_BACK_BYTES_PER_S < inter_bytes_per_s else ""
    return f"the network between nodes gives {_gbit(left)} a node, not {_gbit(inter_bytes_per_s)}{fallen}"


def links_said(cluster: Cluster, factor: float) -> str:
    """Say what speed slower links inside a node have."""
    intra = cluster.groups[0].node.intra.bytes_per_s
    return (
        f"devices of a node exchange {intra / factor / 1e9:.3g} GB/s, not {intra / 1e9:.3g}: PCIe in place of NVLink, or no P2P"
    )


def _gbit(bytes_per_s: float) -> str:
    return f"{bytes_per_s * 8 / 1e9:,.3g} Gb/s" if bytes_per_s < 125e9 else f"{bytes_per_s * 8 / 1e9:,.0f} Gb/s"


NETWORK_CHECK = "NCCL_DEBUG=INFO says NET/IB or NET/Socket; all_reduce_perf -b 1G -e 1G over the nodes says GB/s"
LINKS_CHECK = "nvidia-smi topo -m shows NV between devices, not PHB or SYS; NCCL_DEBUG=INFO says via P2P, not SHM"
CLOCK_CHECK = "nvidia-smi -q -d CLOCK,PERFORMANCE during a step: SM clock, power cap or thermal slowdown; other processes"
