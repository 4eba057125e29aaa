"""A job: the files of a launch, and the nodes that run its command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.app.exporters.command import devices_per_node
from meshwright.app.exporters.export import Export
from meshwright.app.exporters.launch import SCRIPT_NAME, script_of_command
from meshwright.costmodels.cluster.cluster import Device
from meshwright.solver.answer.arrangement import arranged, arrangement_of
from meshwright.solver.answer.pipeline_plan import pipeline_plan, placement_of
from meshwright.solver.answer.plan import AnsweredRequest, Plan
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


def job_of(launched: Export, answered: AnsweredRequest) -> Job:
    """Return the job of a training plan's launch."""
    plan, request = answered.plan, answered.request
    assert isinstance(request, TrainingRequest), "serving plans have servers"
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
