"""Serving on Kubernetes: a Deployment of servers of one node each, a LeaderWorkerSet of larger ones, and a Service in front.

Objects and fields are those of apps/v1 Deployment, v1 Service and ConfigMap, and leaderworkerset.x-k8s.io/v1 LeaderWorkerSet.
"""

from __future__ import annotations

from typing import Any

from meshwright.app.exporters.export import Export, ServerGroup
from meshwright.app.exporters.launch import SCRIPT_NAME
from meshwright.app.exporters.schedulers.job import JobFile
from meshwright.app.exporters.schedulers.kubernetes import config_map, container, manifest, volumes
from meshwright.app.exporters.schedulers.serving import FOLLOWER_SCRIPT, Serving, among_nodes, serving_of
from meshwright.solver.answer.plan import AnsweredRequest

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
