"""A job: the files of a launch, and the nodes that run its command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.app.launching.exporters.launch import SCRIPT_NAME, script_of_command
from meshwright.app.launching.parts.command import devices_per_node
from meshwright.app.launching.parts.export import Export
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.hardware import devices, devices_by_name
from meshwright.solver.answer.arrangement import arranged, arrangement_of
from meshwright.solver.answer.pipeline_plan import pipeline_plan, placement_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.request import TrainingRequest

PREFIX = "meshwright"
DIGITS = 8
"""Digits of a plan's digest in the name of its job: a name has 63 characters at most, and these tell a user's plans apart."""


@dataclass(frozen=True, slots=True)
class Job:
    """A launch on nodes.

    name              of letters, digits and hyphens
    files             text of each file that each node needs in its working directory, the launch script among them
    devices_per_node  devices of each node that take part, nodes in the plan's order
    device            the device of the first node
    node_kinds        number of node groups that hold them
    host_file         of a launch that runs on the first node alone and starts the others, or none
    """

    name: str
    files: Mapping[str, str]
    devices_per_node: tuple[int, ...]
    device: Device
    node_kinds: int
    host_file: str | None

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.devices_per_node)

    @property
    def is_even(self) -> bool:
        """True where every node takes part with as many devices."""
        return len(set(self.devices_per_node)) == 1


@dataclass(frozen=True, slots=True)
class JobFile:
    """The text of the file that a scheduler is given, the name that it is written under, and the command that submits it."""

    name: str
    text: str
    submit: str
    assumptions: tuple[str, ...]


def job_of(launched: Export, plan: Plan, request: TrainingRequest) -> Job:
    """Return the job of a training plan's launch."""
    request = arranged(request, arrangement_of(placement_of(plan)))
    per_node = devices_per_node(request, pipeline_plan(plan).devices)
    return Job(
        name=name_of(plan),
        files={**launched.files, SCRIPT_NAME: script_of_command(launched)},
        devices_per_node=per_node,
        device=request.cluster.groups[0].node.device,
        node_kinds=sum(first < sum(per_node) for first in _first_ranks(request)),
        host_file=launched.host_file,
    )


def name_of(plan: Plan) -> str:
    """Return the name of what runs a plan, which is the plan's own alone."""
    return f"{PREFIX}-{plan.digest.rpartition(':')[2][:DIGITS]}" if plan.digest else PREFIX


def _first_ranks(request: TrainingRequest) -> list[int]:
    """The first rank of each node group."""
    groups = request.cluster.groups
    return [sum(before.n_devices for before in groups[:place]) for place in range(len(groups))]


# The names by which SkyPilot asks clouds for devices, and Ray for those of its nodes.
#
# Sources: SkyPilot's canonical names (sky/utils/gpu_names.py, sky/catalog), Ray's ray/util/accelerators/accelerators.py.

SKYPILOT: Mapping[str, str] = {
    "a100-pcie-80gb": "A100-80GB",
    "a100-sxm-40gb": "A100",
    "a100-sxm-80gb": "A100-80GB",
    "a10g-24gb": "A10G",
    "a40-48gb": "A40",
    "b200-sxm-180gb": "B200",
    "b300-sxm-270gb": "B300",
    "gb200-186gb": "GB200",
    "gb300-288gb": "GB300",
    "gh200-96gb": "GH200",
    "h100-pcie-80gb": "H100",
    "h100-sxm-80gb": "H100",
    "h200-sxm-141gb": "H200",
    "l4-24gb": "L4",
    "l40s-48gb": "L40S",
    "mi300x-192gb": "MI300X",
    "rtx-4090-24gb": "RTX4090",
    "rtx-5090-32gb": "RTX5090",
    "rtx-a6000-48gb": "A6000",
    "rtx-pro-6000-96gb": "RTXPRO6000",
    "t4-16gb": "T4",
    "v100-sxm2-16gb": "V100",
    "v100-sxm2-32gb": "V100-32GB",
}
"""By device of the catalogue."""

RAY: Mapping[str, str] = {
    "a100-pcie-80gb": "A100",
    "a100-sxm-40gb": "A100",
    "a100-sxm-80gb": "A100",
    "a10g-24gb": "A10G",
    "b200-sxm-180gb": "B200",
    "b300-sxm-270gb": "B300",
    "gb200-186gb": "GB200",
    "gb300-288gb": "GB300",
    "h100-nvl-94gb": "H100",
    "h100-pcie-80gb": "H100",
    "h100-sxm-80gb": "H100",
    "h100-sxm-96gb-hbm2e": "H100",
    "h20-96gb": "H20",
    "h200-sxm-141gb": "H200",
    "l4-24gb": "L4",
    "l40s-48gb": "L40S",
    "mi300x-192gb": "AMD-Instinct-MI300X-OAM",
    "mi325x-256gb": "AMD-Instinct-MI325X-OAM",
    "mi355x-288gb": "AMD-Instinct-MI355X-OAM",
    "rtx-pro-6000-96gb": "RTX-PRO-6000",
    "t4-16gb": "T4",
    "v100-sxm2-16gb": "V100",
    "v100-sxm2-32gb": "V100",
}
"""By device of the catalogue; the size of an A100's memory is no name that Ray gives nodes by itself."""


@dataclass(frozen=True, slots=True)
class DeviceName:
    """A name for the devices of a plan, and what it takes for granted."""

    name: str
    assumptions: tuple[str, ...]


def named(device: Device, names: Mapping[str, str], *, where: str) -> DeviceName | None:
    """Return the name of a plan's devices by a table, None where it has none."""
    known = devices_by_name().get(device.name)
    name = None if known is None else names.get(known.name)
    if known is not None:
        return None if name is None else DeviceName(name, ())
    # A device that a request describes has a name of its own; its calibration and memory say which it is.
    alike = [each for each in devices() if each.calibration == device.calibration and each.name in names]
    if not alike:
        return None
    name = names[min(alike, key=lambda each: abs(each.memory_bytes - device.memory_bytes)).name]
    return DeviceName(name, (f"the request's own devices are what {where} calls {name}",))


def require_named(device: Device, names: Mapping[str, str], *, where: str) -> DeviceName:
    """Return the name of a plan's devices by a table; raises ExportError where it has none."""
    found = named(device, names, where=where)
    if found is None:
        raise ExportError(
            f"{where} has no name for the devices of this plan",
            given=device.name,
            allowed=", ".join(sorted(set(names.values()))),
            remedy="export for slurm or kubernetes",
        )
    return found
