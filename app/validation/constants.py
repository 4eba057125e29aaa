"""Constants that may be fitted to measured runs: rates that a device sustains, speeds of a cluster's links, laws of memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from meshwright.app.validation.rows import Run
from meshwright.costmodels.cluster.cluster import Cluster, Device, Link, NodeGroup, SustainedRates
from meshwright.costmodels.model.memory_law import MemoryLaw
from meshwright.solver.problem.implementation import StatedImplementation
from meshwright.solver.problem.request import TrainingRequest


class Constant(StrEnum):
    """The constant that is fitted; each is a rate over that of the catalogue or of kernels timed alone.

    The host's speed in launching kernels is none of a chip: it is that of the software and its host (`solver.problem`'s
    implementation). Fitted by chip it explained toy models and made others worse that it had not seen.
    """

    MATRIX = "matrix"
    LOW_PRECISION_MATRIX = "low_precision_matrix"
    MEMORY = "memory"
    INTRA_NODE_LINK = "intra_node_link"
    INTER_NODE_LINK = "inter_node_link"


LINKS = (Constant.INTRA_NODE_LINK, Constant.INTER_NODE_LINK)
"""These are of a cluster; the others are of a chip, and shared by every source that uses it."""

ConstantOf = tuple[Constant, str]
"""A constant of a chip (`silicon_name`), or of a cluster (`cluster_name`)."""


@dataclass(frozen=True)
class Constants:
    """Fitted rates, 1 where nothing was fitted.

    memory   the law of memory in place of the profile's, None to leave that
    told     chips of the runs of the fit; those of others are expected. None where nothing was fitted
    """

    rates: Mapping[ConstantOf, float] = field(default_factory=dict)
    memory: MemoryLaw | None = None
    told: frozenset[str] | None = None

    def tells(self, cluster: Cluster) -> bool:
        """Return True if runs of the fit told the rates of every device of a cluster."""
        return self.told is not None and self.told >= {silicon_name(group.node.device) for group in cluster.groups}

    def rate(self, constant: Constant, owner: str) -> float:
        """Rate of one chip or cluster."""
        return self.rates.get((constant, owner), 1.0)

    def listed(self) -> list[tuple[Constant, str, float]]:
        """Every fitted rate, by what it is of."""
        found = [(constant, owner, rate) for (constant, owner), rate in self.rates.items()]
        return sorted(found, key=lambda item: (item[1], item[0].value))

    def scaled(self, constant: Constant, factor: float, owners: tuple[str, ...]) -> Constants:
        """These with one constant of all owners multiplied."""
        changed = {(constant, owner): self.rate(constant, owner) * factor for owner in owners}
        return replace(self, rates={**self.rates, **changed})


def cluster_name(run: Run) -> str:
    """The cluster of a run: a source's nodes of one GPU."""
    return f"{run.source}/{run.gpu}"


def silicon_name(device: Device) -> str:
    """The chip of a device: boards that differ only in memory are one, those under different power limits are not."""
    return f"{device.calibration}/{device.power_w:g}W"


def with_constants(request: TrainingRequest, name: str, constants: Constants) -> TrainingRequest:
    """The request with devices and links of its cluster at the given rates, in place of what the catalogue ships, and with the
    given law of memory."""
    cluster = replace(request.cluster, groups=tuple(_group(group, name, constants) for group in request.cluster.groups))
    if constants.memory is None:
        return replace(request, cluster=cluster)
    stated = request.workload.implementation or StatedImplementation()
    workload = replace(request.workload, implementation=replace(stated, memory=constants.memory))
    return replace(request, cluster=cluster, workload=workload)


def _group(group: NodeGroup, name: str, constants: Constants) -> NodeGroup:
    node = replace(
        group.node,
        device=_device(group.node.device, constants),
        intra=_link(group.node.intra, constants.rate(Constant.INTRA_NODE_LINK, name)),
        inter=_link(group.node.inter, constants.rate(Constant.INTER_NODE_LINK, name)),
    )
    return replace(group, node=node)


def _device(device: Device, constants: Constants) -> Device:
    rates = {constant.value: constants.rate(constant, silicon_name(device)) for constant in Constant if constant not in LINKS}
    return replace(device, sustained=SustainedRates(**rates))


def _link(link: Link, rate: float) -> Link:
    return replace(link, bytes_per_s=link.bytes_per_s * rate)
