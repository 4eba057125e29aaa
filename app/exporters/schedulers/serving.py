"""Servers of a plan as schedulers start them: equal ones, on nodes of one kind, and the files that each node needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.app.exporters.export import Export, ServerGroup
from meshwright.app.exporters.launch import SCRIPT_NAME, script_of_command
from meshwright.app.exporters.schedulers.job import name_of
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.errors import ExportError
from meshwright.solver.answer.plan import AnsweredRequest

FOLLOWER_SCRIPT = "follow.sh"


@dataclass(frozen=True, slots=True)
class Serving:
    """The servers of a plan.

    name     of letters, digits and hyphens
    servers  how many, of how many nodes and devices
    device   of all nodes
    files    text of each file that a node needs; the first node of a server runs the launch script, others FOLLOWER_SCRIPT
    runs     the launcher and its release
    """

    name: str
    servers: ServerGroup
    device: Device
    files: Mapping[str, str]
    runs: str

    @property
    def devices_per_node(self) -> int:
        """Devices of each node of a server."""
        return self.servers.devices // self.servers.nodes


def serving_of(launched: Export, answered: AnsweredRequest, what: str) -> Serving:
    """Return the servers of a plan for a scheduler's object, named by ``what``; raises ExportError for those it can't be."""
    servers = launched.servers
    groups = answered.request.cluster.groups
    if servers is None:
        raise ExportError(
            f"{what} is of one kind of servers",
            given="a plan whose servers are of several kinds",
            remedy="export without --on, and start each server of the script where the plan has it",
        )
    if len(groups) > 1:
        raise ExportError(
            f"the servers of {what} are on one kind of nodes",
            given=f"a plan on {len(groups)} node groups",
            remedy="plan on one node group, or export without --on and start each server of the script where the plan has it",
        )
    if servers.nodes > 1 and not servers.starts_by_itself:
        raise ExportError(
            f"a server of {launched.launcher.value} on several nodes is started by MPI, which {what} does not have",
            given=f"{servers.nodes} nodes a server",
            remedy=f"restrict search.tp and search.pp to {groups[0].node.host_devices} devices a server, or serve with vllm",
        )
    if servers.devices % servers.nodes:
        raise ExportError(
            f"{what} gives all nodes of a server as many devices",
            given=f"{servers.devices} devices on {servers.nodes} nodes",
            remedy="restrict search.tp and search.pp to whole nodes",
        )
    files = {**launched.files, SCRIPT_NAME: _script(launched, servers.outside)}
    if servers.nodes > 1:
        files[FOLLOWER_SCRIPT] = _script(launched, " ".join(filter(None, (servers.outside, servers.others))))
    runs = f"{launched.launcher.value} {launched.version}"
    return Serving(name_of(answered.plan), servers, groups[0].node.device, files, runs)


def _script(launched: Export, more: str) -> str:
    """The launch script, with what the command needs beside it to answer other hosts or to follow."""
    text = script_of_command(launched).rstrip("\n")
    return f"{text} {more}\n" if more else f"{text}\n"


def among_nodes(servers: ServerGroup, *, rank: str, address: str) -> list[str]:
    """Return the commands that tell a node of a server its place, of words of a shell that give its rank and the first one's
    address; none where a server has one node."""
    if servers.nodes == 1:
        return []
    meeting = "" if servers.meeting_port is None else f":{servers.meeting_port}"
    return [
        f"export NODE_RANK=${rank}",
        f"export FIRST_RANK=$(({rank} * {servers.ranks_a_node}))",
        f"export MASTER_ADDR=${address}{meeting}",
    ]
