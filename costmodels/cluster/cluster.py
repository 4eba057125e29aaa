"""Devices, links, nodes and clusters, and the bandwidth that a group of ranks sees.

Ranks are numbered through the cluster's groups in order, node by node, device by device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from meshwright.costmodels.errors import ClusterError
from meshwright.costmodels.units import STRICT_RECORD, DType, Fraction, Name, NonNegativeFloat, PositiveFloat, PositiveInt


@dataclass(frozen=True, slots=True)
class SustainedRates:
    """The rates that a device reaches in the steps of a long run, over what its kernels reach timed one by one.

    matrix                 16-bit and wider matrix products: power limits pull clocks down while they follow each other
    low_precision_matrix   fp8 and fp4 products
    memory                 kernels that only move memory
    host                   the host's speed in launching kernels
    """

    __pydantic_config__ = STRICT_RECORD

    matrix: PositiveFloat = 1.0
    low_precision_matrix: PositiveFloat = 1.0
    memory: PositiveFloat = 1.0
    host: PositiveFloat = 1.0


NCCL_COMMUNICATOR_BYTES = 2 * 16 * 4 * 2**20
"""Send and receive buffers of NCCL's channels: 4 MiB each (NCCL_BUFFSIZE, NCCL user guide, environment variables), in 16
channels, as it opens in a ring over NVLink on 8-GPU nodes (its INFO log on A100 and H100 hosts: 16 to 24)."""

UNSTATED_NETWORK = "unstated"
"""The network between nodes of which nothing but its speed is stated: its prior is that of networks of every kind."""

NEAREST = "nearest"
"""The calibration of a device that names none: the nearest measured device's, which a request names in full when it is read."""

IDLE_POWER_W, IDLE_SHARE = 80.0, 0.2
"""Idle power where none is given, and its share of the usual full power (A100 and H100 boards: 45 to 80 W of 300 to 700 W)."""

TIMED_ALONE = SustainedRates()
"""As kernels were timed: nothing is slower in a run."""
UNTOLD_RATES = SustainedRates(matrix=0.82, low_precision_matrix=0.89, memory=0.76)
"""Those expected of a chip that no training run tells of, as fits to all sources but one take them: geometric means over the
chips that runs tell of, products taken at one power limit (docs/accuracy.md)."""


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator.

    memory_bytes          what the driver reports as total
    peak_flops            dense peak by number format, FLOP/s
    memory_bytes_per_s    HBM or GDDR bandwidth of the data sheet
    calibration           kernel calibration that stands for this device: a key ("h100_sxm"), or the nearest measured one
    host_bytes_per_s      one direction of the device's link to host memory
    power_w, idle_power_w board power at full load and idle; a small board's idle power, left out, is a fifth of its full one
    price_per_hour        list price of one device-hour in USD, if known
    communicator_bytes    what its collective library holds on it for each communicator
    sustained             rates of training steps over those of single kernels
    """

    __pydantic_config__ = STRICT_RECORD

    name: Name
    memory_bytes: PositiveInt
    peak_flops: Mapping[DType, PositiveFloat]
    memory_bytes_per_s: PositiveFloat
    calibration: Name = NEAREST
    host_bytes_per_s: PositiveFloat = 25e9
    power_w: PositiveFloat = 400.0
    idle_power_w: NonNegativeFloat = IDLE_POWER_W
    price_per_hour: NonNegativeFloat | None = None
    communicator_bytes: PositiveInt = NCCL_COMMUNICATOR_BYTES
    sustained: SustainedRates = TIMED_ALONE
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.idle_power_w <= self.power_w:
            return
        if self.idle_power_w != IDLE_POWER_W:
            raise ClusterError(
                "a device takes more power idle than at full load",
                given=f"idle_power_w {self.idle_power_w:g}, power_w {self.power_w:g}",
                allowed="idle_power_w up to power_w",
                remedy="leave idle_power_w out if it is not known",
            )
        # It was left out: 80 W is the usual of boards of 400 W.
        object.__setattr__(self, "idle_power_w", IDLE_SHARE * self.power_w)

    def __hash__(self) -> int:
        # Devices are parts of many cache keys; equal ones have equal names.
        return hash(self.name)

    def peak(self, dtype: DType) -> float:
        """Dense peak FLOP/s in a number format; raises ClusterError when the device has none."""
        try:
            return self.peak_flops[dtype]
        except KeyError:
            raise ClusterError(
                f"device {self.name!r} has no matrix unit for {dtype.value}",
                given=dtype.value,
                allowed=", ".join(sorted(d.value for d in self.peak_flops)),
                remedy="choose another precision or another device",
            ) from None


@dataclass(frozen=True, slots=True)
class Link:
    """A link class: bytes_per_s is one direction, per device (NVLink) or per node (all NICs of the node together)."""

    __pydantic_config__ = STRICT_RECORD

    name: Name
    bytes_per_s: PositiveFloat
    latency_s: NonNegativeFloat


@dataclass(frozen=True, slots=True)
class Nvme:
    """A node's solid-state drives together: what they hold for state, and sustained bytes/s read from them and written."""

    __pydantic_config__ = STRICT_RECORD

    capacity_bytes: PositiveInt
    read_bytes_per_s: PositiveFloat
    write_bytes_per_s: PositiveFloat


@dataclass(frozen=True, slots=True)
class NodeType:
    """A node, or a whole rack where one fast fabric joins it (GB200 NVL72): devices that share ``intra``.

    intra    fabric among the node's devices, bytes/s one direction per device
    inter    the node's network: all its NICs together, bytes/s one direction
    host_memory_bytes   memory of the host(s), for offload
    nvme     drives that state may lie on; None: there are none
    devices_per_host    devices of one host of a rack, which launchers start as a node each; None: the node is one host
    network  calibration of ``inter``: a kind of network ("infiniband"), whose prior stands for it, or one that was measured
    """

    __pydantic_config__ = STRICT_RECORD

    name: Name
    device: Device
    devices_per_node: PositiveInt
    intra: Link
    inter: Link
    host_memory_bytes: PositiveInt = 2**40
    nvme: Nvme | None = None
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    devices_per_host: PositiveInt | None = None
    network: Name = UNSTATED_NETWORK

    def __post_init__(self) -> None:
        if self.devices_per_host is not None and self.devices_per_host > self.devices_per_node:
            raise ClusterError(
                "a host has more devices than its node",
                given=f"devices_per_host {self.devices_per_host}, devices_per_node {self.devices_per_node}",
                allowed="devices_per_host up to devices_per_node",
                remedy="leave devices_per_host out where a node is one host",
            )

    @property
    def host_devices(self) -> int:
        """Devices of one host: what one launcher process group of torchrun, vLLM or SGLang can start."""
        return self.devices_per_host or self.devices_per_node


def part_of_node(node: NodeType, devices: int) -> NodeType:
    """The node with so many devices, each with its share of the network (one of the node's cards)."""
    if devices == node.devices_per_node:
        return node
    inter = replace(node.inter, bytes_per_s=node.inter.bytes_per_s * devices / node.devices_per_node)
    hosts_of = None if node.devices_per_host is None else min(node.devices_per_host, devices)
    return replace(node, devices_per_node=devices, inter=inter, devices_per_host=hosts_of)


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Equal nodes under one name."""

    __pydantic_config__ = STRICT_RECORD

    name: Name
    node: NodeType
    nodes: PositiveInt

    @property
    def n_devices(self) -> int:
        """Devices of the group."""
        return self.nodes * self.node.devices_per_node


def price_per_hour(devices: Iterable[tuple[Device, int]]) -> float | None:
    """USD an hour of so many devices of each kind; None where one has no price."""
    total = 0.0
    for device, number in devices:
        if device.price_per_hour is None:
            return None
        total += number * device.price_per_hour
    return total


@dataclass(frozen=True, slots=True)
class Cluster:
    """Node groups in rank order.

    oversubscription   divides the network between nodes (2 = a 2:1 spine), of ``nodes_per_leaf`` only that between leaves
    nodes_per_leaf     neighbouring nodes under one leaf switch, which have their whole network among them; None: no two have
    memory_reserve     share of every device's memory that is kept free
    """

    __pydantic_config__ = STRICT_RECORD

    groups: tuple[NodeGroup, ...]
    oversubscription: PositiveFloat = 1.0
    memory_reserve: Fraction = 0.0
    nodes_per_leaf: PositiveInt | None = None

    def __post_init__(self) -> None:
        if not self.groups:
            raise ClusterError("a cluster needs at least one node group", given=[])
        names = [group.name for group in self.groups]
        if len(set(names)) != len(names):
            raise ClusterError("names of node groups must differ", given=names)

    @property
    def n_devices(self) -> int:
        """All devices of the cluster."""
        return sum(group.n_devices for group in self.groups)

    @property
    def price_per_hour(self) -> float | None:
        """USD an hour of all devices; None where one has no price."""
        return price_per_hour((group.node.device, group.n_devices) for group in self.groups)

    def group_of(self, rank: int) -> NodeGroup:
        """The node group that holds a rank."""
        first = 0
        for group in self.groups:
            if rank < first + group.n_devices:
                return group
            first += group.n_devices
        raise ClusterError("rank is outside the cluster", given=rank, allowed=f"0 to {self.n_devices - 1}")

    def node_of(self, rank: int) -> int:
        """Number of the node (through all groups) that holds a rank."""
        first, node = 0, 0
        for group in self.groups:
            if rank < first + group.n_devices:
                return node + (rank - first) // group.node.devices_per_node
            first += group.n_devices
            node += group.nodes
        raise ClusterError("rank is outside the cluster", given=rank, allowed=f"0 to {self.n_devices - 1}")

    def groups_spanned(self, first: int, count: int) -> tuple[NodeGroup, ...]:
        """Node groups that hold at least one rank of first .. first+count-1."""
        found, start = [], 0
        for group in self.groups:
            if start < first + count and first < start + group.n_devices:
                found.append(group)
            start += group.n_devices
        return tuple(found)

    def groups_holding(self, ranks: range) -> tuple[NodeGroup, ...]:
        """Node groups that hold at least one of equally spaced ranks."""
        found, start = [], 0
        for group in self.groups:
            end = start + group.n_devices
            behind = max(0, -(-(start - ranks.start) // ranks.step))
            if behind < len(ranks) and ranks[behind] < end:
                found.append(group)
            start = end
        return tuple(found)


@dataclass(frozen=True, slots=True)
class GroupTopology:
    """The topology of a rank group, as a collective sees it.

    n                 ranks in the group
    ranks_per_node    ranks of the group on one node (1 when every rank is on a node of its own)
    intra             fabric inside a node
    inter_bytes_per_s network bandwidth one rank of the group gets while all ranks of its node talk at once,
                      each in its own group: NICs are shared (one direction)
    inter_latency_s   latency of a hop between nodes
    calibration       key of the collective calibration
    network           calibration of the network between its nodes
    """

    n: int
    ranks_per_node: int
    intra: Link
    inter_bytes_per_s: float
    inter_latency_s: float
    calibration: str
    network: str = UNSTATED_NETWORK

    @property
    def spans_nodes(self) -> bool:
        """True if the group needs the network between nodes."""
        return self.n > self.ranks_per_node


def group_topology(cluster: Cluster, *, n: int, stride: int, first: int = 0) -> GroupTopology:
    """Topology of the ranks first, first+stride, ... (n of them), the slowest node type they touch deciding.

    With r ranks of the group on a node of D devices, D/r groups of the same kind run at once and share the node's
    NICs, and a ring enters and leaves a node once: a ring gets inter/(D/r), that is inter x r / D bytes/s. Groups of unequal
    nodes, or that begin inside one, have r of their fullest node. A group that leaves its leaf switch goes at the spine's rate.
    """
    span = (n - 1) * stride + 1
    if first + span > cluster.n_devices:
        raise ClusterError(
            "rank group is outside the cluster", given=(first, n, stride), allowed=f"{cluster.n_devices} devices"
        )
    ranks = range(first, first + span, stride)
    first_node, last_node = cluster.node_of(first), cluster.node_of(first + span - 1)
    is_one_node = first_node == last_node
    touched = [
        (group, _ranks_on_a_node(cluster, ranks, group.node.devices_per_node, is_one_node=is_one_node))
        for group in cluster.groups_holding(ranks)
    ]
    return topology_between(cluster, touched, n=n, first_node=first_node, last_node=last_node)


def topology_between(
    cluster: Cluster, touched: Sequence[tuple[NodeGroup, int]], *, n: int, first_node: int, last_node: int
) -> GroupTopology:
    """Topology of n ranks from one node to another: the node groups that hold some, each with the ranks on its fullest node."""
    shares = []
    for group, here in touched:
        share = group.node.inter.bytes_per_s / max(1, group.node.devices_per_node // here)
        shares.append((share, here, group.node.inter.latency_s, group.node.network))
    inter_bytes_per_s, ranks_per_node, inter_latency_s, network = min(shares, key=lambda share: share[0])
    per_leaf = cluster.nodes_per_leaf or 1
    same_leaf = first_node // per_leaf == last_node // per_leaf
    slowest_intra = min((group for group, _ in touched), key=lambda group: group.node.intra.bytes_per_s)
    return GroupTopology(
        n=n,
        ranks_per_node=ranks_per_node,
        intra=slowest_intra.node.intra,
        inter_bytes_per_s=inter_bytes_per_s / (1.0 if same_leaf else cluster.oversubscription),
        inter_latency_s=inter_latency_s,
        calibration=slowest_intra.node.device.calibration,
        network=network,
    )


def _ranks_on_a_node(cluster: Cluster, ranks: range, per_node: int, *, is_one_node: bool) -> int:
    """Ranks of a group on its fullest node, nodes having ``per_node`` devices."""
    if is_one_node:
        return len(ranks)
    most = max(1, -(-per_node // ranks.step))
    if len(ranks) >= 2 * most:
        return most
    # So short a group may begin and end inside nodes: no node need hold as many of its ranks as it could.
    return max(Counter(cluster.node_of(rank) for rank in ranks).values())
