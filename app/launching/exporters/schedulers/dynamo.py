"""NVIDIA Dynamo: a DynamoGraphDeployment of a frontend, which routes requests, and of replicas or two pools behind it.

Fields are those of nvidia.com/v1beta1 DynamoGraphDeployment (dynamo/profiler/utils/config.py). Its operator tells the nodes of
a replica of each other; its workers pass flags that they do not know on to their engine.
"""

from __future__ import annotations

import re
from typing import Any

from meshwright.app.launching.exporters.schedulers.job import JobFile
from meshwright.app.launching.exporters.schedulers.kubernetes import literal, manifest, resource_of
from meshwright.app.launching.exporters.schedulers.serving import Role, Serving, require_launcher, servers_by_role
from meshwright.app.launching.parts.export import Export, ReplicaEngine
from meshwright.costmodels.errors import ExportError
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.problem.choices import Launcher

FILE = "dynamo.yaml"
VERSION = "1.6.1"
_REGISTRY = "nvcr.io/nvidia/ai-dynamo"
_MODEL_FLAG = {Launcher.VLLM: "--model", Launcher.SGLANG: "--model-path"}
_PLAIN = re.compile(r"[A-Za-z0-9._/@:+-]+")
"""Words that a shell leaves as they are."""


def service_file(launched: Export, answered: AnsweredRequest) -> JobFile:
    """Return the manifest of a serving plan; raises ExportError for one that Dynamo can't run."""
    problem = "graphs of Dynamo are written for engines whose flags its workers pass on"
    require_launcher(launched, tuple(_MODEL_FLAG), problem)
    found = servers_by_role(launched, answered, "a DynamoGraphDeployment")
    first = next(iter(found.values()))
    if resource_of(first.device) != "nvidia.com/gpu":
        raise ExportError(
            "Dynamo's images are for NVIDIA's devices", given=first.device.name, remedy="export with --on kubernetes"
        )
    described = {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": first.name},
        "spec": {"components": [_frontend(launched), *(_worker(launched, each, role) for role, each in found.items())]},
    }
    said = _assumptions(launched, is_multinode=any(each.servers.nodes > 1 for each in found.values()))
    return JobFile(FILE, manifest([described]), f"kubectl apply -f {FILE}", said)


def _require_plain(serving: Serving, engine: ReplicaEngine) -> None:
    """Raise ExportError for a name that a shell would read."""
    if serving.servers.nodes > 1 and not _PLAIN.fullmatch(engine.model):
        raise ExportError(
            "Dynamo's operator hands the words of a server of several nodes to a shell, which would read this name",
            given=engine.model,
            allowed="letters, digits and . _ / @ : + -",
            remedy="name the model by its directory or Hugging Face name",
        )


def _frontend(launched: Export) -> dict[str, Any]:
    command = ["python3", "-m", "dynamo.frontend"]
    return _component("Frontend", "frontend", 1, {"image": _image(launched), "command": command})


def _worker(launched: Export, serving: Serving, role: Role) -> dict[str, Any]:
    servers, engine = serving.servers, serving.servers.engine
    assert engine is not None, "engines of these launchers are told apart"
    _require_plain(serving, engine)
    # SGLang's own flags say its pool; vLLM has none, and Dynamo's worker of it one of its own.
    of_pool = () if role is Role.WORKER or launched.launcher is not Launcher.VLLM else ("--disaggregation-mode", role.value)
    container: dict[str, Any] = {
        "image": _image(launched),
        "command": ["python3", "-m", f"dynamo.{launched.launcher.value}"],
        "args": [_MODEL_FLAG[launched.launcher], *map(literal, (engine.model, *engine.words, *of_pool))],
        "resources": {"limits": {"nvidia.com/gpu": str(serving.devices_per_node // engine.copies)}},
    }
    if engine.environment:
        container["env"] = [{"name": name, "value": literal(value)} for name, value in engine.environment]
    component = _component(role.value, role.value, servers.count * engine.copies, container)
    return component | ({"multinode": {"nodeCount": servers.nodes}} if servers.nodes > 1 else {})


def _component(name: str, kind: str, replicas: int, container: dict[str, Any]) -> dict[str, Any]:
    pod = {"spec": {"containers": [{"name": "main", **container}]}}
    return {"name": name, "type": kind, "replicas": replicas, "podTemplate": pod}


def _image(launched: Export) -> str:
    return f"{_REGISTRY}/{launched.launcher.value}-runtime:{VERSION}"


def _assumptions(launched: Export, *, is_multinode: bool) -> tuple[str, ...]:
    said = [
        "Dynamo's operator is installed, and pods may load the checkpoint (a secret with HF_TOKEN where it is gated)",
        f"the image holds Dynamo's own release of {launched.launcher.value}; the flags are those of {launched.version}",
    ]
    if is_multinode:
        said.append("Grove or the LeaderWorkerSet controller is installed, which starts the nodes of a replica together")
    return tuple(said)
