"""Servers of a plan as schedulers start them: equal ones, on nodes of one kind, and the files that each node needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from meshwright.app.launching.exporters.launch import SCRIPT_NAME, script_of_command
from meshwright.app.launching.exporters.schedulers.job import JobFile, name_of
from meshwright.app.launching.exporters.schedulers.kubernetes import config_map, container, manifest, volumes
from meshwright.app.launching.parts.export import Export, ServerGroup
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.errors import ExportError
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.problem.choices import Launcher

FOLLOWER_SCRIPT = "follow.sh"


class Role(StrEnum):
    """The phases that servers do: both, or one of them."""

    WORKER = "worker"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Serving:
    """The servers of a plan, or of a pool of it.

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


def require_launcher(launched: Export, allowed: Sequence[Launcher], problem: str) -> None:
    """Refuse the plan of a launcher that a scheduler does not start; raises ExportError."""
    if launched.launcher not in allowed:
        names = [launcher.value for launcher in allowed]
        raise ExportError(
            problem,
            given=launched.launcher.value,
            allowed=", ".join(names),
            remedy=f"plan with search.engine {' or '.join(names)}, or export with --on kubernetes",
        )


def serving_of(launched: Export, answered: AnsweredRequest, what: str) -> Serving:
    """Return the servers of a plan for a scheduler's object, named by ``what``; raises ExportError for those it can't be."""
    if launched.servers is None:
        raise ExportError(
            f"{what} is of one kind of servers",
            given="a plan whose servers are of several kinds",
            remedy="export without --on, and start each server of the script where the plan has it",
        )
    return _serving(launched, launched.servers, answered, what)


def servers_by_role(launched: Export, answered: AnsweredRequest, what: str) -> dict[Role, Serving]:
    """Return the servers of a plan of one kind of workers, or of each of its pools; raises ExportError as `serving_of` does."""
    pools = launched.pools
    if pools is None:
        return {Role.WORKER: serving_of(launched, answered, what)}
    return {
        role: _serving(launched, servers, answered, what)
        for role, servers in ((Role.PREFILL, pools.prefill), (Role.DECODE, pools.decode))
    }


def _serving(launched: Export, servers: ServerGroup, answered: AnsweredRequest, what: str) -> Serving:
    groups = answered.request.cluster.groups
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


# Serving on Kubernetes: a Deployment of servers of one node each, a LeaderWorkerSet of larger ones, and a Service in front.
#
# Objects and fields are those of apps/v1 Deployment, v1 Service and ConfigMap, and leaderworkerset.x-k8s.io/v1
# LeaderWorkerSet.

FILE = "service.yaml"
IMAGE = "registry.example/server:latest"
"""A stand-in."""
_APP = "app.kubernetes.io/name"
_LEADER = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
"""A label that its controller gives the first pod of each group."""


def service_file(launched: Export, answered: AnsweredRequest) -> JobFile:
    """Return the manifest of a serving plan; raises ExportError for servers that pods can't be."""
    serving = serving_of(launched, answered, "a Deployment")
    described = _deployment(serving) if serving.servers.nodes == 1 else _leader_worker_set(serving)
    text = manifest([config_map(serving.name, serving.files), _service(serving.name, serving.servers), described])
    return JobFile(FILE, text, f"kubectl apply -f {FILE}", _assumptions(serving))


def server_container(serving: Serving, name: str, *, script: str, answers: bool) -> dict[str, Any]:
    """Return the container of a node of a server: of its first one, which ``answers``, or of another."""
    servers = serving.servers
    # The controller gives each pod of a group its index and the address of the first.
    among = among_nodes(servers, rank="LWS_WORKER_INDEX", address="LWS_LEADER_ADDRESS")
    commands = [*among, f"exec sh ./{script}"]
    server = container(name, IMAGE, commands, device=serving.device, count=serving.devices_per_node)
    if answers:
        server["ports"] = [{"name": "http", "containerPort": servers.port}]
        # Requests come once weights are loaded, however long that takes.
        server["readinessProbe"] = {"httpGet": {"path": "/health", "port": "http"}}
    return server


def _service(name: str, servers: ServerGroup) -> dict[str, Any]:
    """One address for all servers; of a server of several nodes, the first pod answers."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "selector": {_APP: name, **(_LEADER if servers.nodes > 1 else {})},
            "ports": [{"name": "http", "port": servers.port, "targetPort": servers.port}],
        },
    }


def _pod(serving: Serving, *, script: str, answers: bool) -> dict[str, Any]:
    server = server_container(serving, "server", script=script, answers=answers)
    return {
        "metadata": {"labels": {_APP: serving.name}},
        "spec": {"containers": [server], "volumes": volumes(serving.name)},
    }


def _deployment(serving: Serving) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": serving.name},
        "spec": {
            "replicas": serving.servers.count,
            "selector": {"matchLabels": {_APP: serving.name}},
            "template": _pod(serving, script=SCRIPT_NAME, answers=True),
        },
    }


def _leader_worker_set(serving: Serving) -> dict[str, Any]:
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": serving.name},
        "spec": {
            "replicas": serving.servers.count,
            "leaderWorkerTemplate": {
                "size": serving.servers.nodes,
                # Ranks of a server know one another from its start: one that is lost takes all with it.
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": _pod(serving, script=SCRIPT_NAME, answers=True),
                "workerTemplate": _pod(serving, script=FOLLOWER_SCRIPT, answers=False),
            },
        },
    }


def _assumptions(serving: Serving) -> tuple[str, ...]:
    servers = serving.servers
    said = [image_assumption(serving)]
    if servers.count > 1:
        said.append(
            "the Service spreads connections over the servers: clients open a new one often, or a gateway is put before it"
        )
    if servers.nodes > 1:
        said.append("the LeaderWorkerSet controller is installed")
    return tuple(said)


def image_assumption(serving: Serving) -> str:
    """Return the sentence on the image of servers that the manifest takes for granted."""
    return (
        f"{IMAGE} is a stand-in: name an image that has {serving.runs}, and whose working "
        "directory the command runs in, with the checkpoint or the right to load it"
    )
