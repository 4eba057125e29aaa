"""llm-d: values of its chart of model servers, vLLM's replicas, or a prefill and a decode pool behind its router.

Keys are those of llm-d-modelservice v0.4.12 (charts/llm-d-modelservice/values.yaml), which writes the model, the port and the
degrees that it knows into the command; all else are arguments.
"""

from __future__ import annotations

import re
from typing import Any

from meshwright.app.base.quoting import yaml_text
from meshwright.app.launching.exporters.schedulers.job import JobFile
from meshwright.app.launching.exporters.schedulers.kubernetes import literal, resource_of
from meshwright.app.launching.exporters.schedulers.serving import Role, Serving, require_launcher, servers_by_role
from meshwright.app.launching.launchers.vllm import SIDE_CHANNEL_PORT
from meshwright.app.launching.parts.export import Export, ReplicaEngine
from meshwright.costmodels.errors import ExportError
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.problem.choices import Launcher

FILE = "values.yaml"
CHART, VERSION = "llm-d-modelservice", "v0.4.12"
_IMAGES = {
    "nvidia.com/gpu": ("nvidia", "ghcr.io/llm-d/llm-d-cuda:latest"),
    "amd.com/gpu": ("amd", "vllm/vllm-openai-rocm:latest"),
}
"""The chart's type of accelerator, and an image, by the names that makers' plugins give devices."""
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_SERVED_AT, _BEHIND_THE_ROUTER = 8000, 8200
"""Ports of the chart: of its servers, and of those whose pods hold a router in front of them."""
_DEGREES = {"--tensor-parallel-size": "tensor", "--data-parallel-size": "data"}
"""Flags that the chart writes itself."""
_SHARED_MEMORY = "shared-memory"


def service_file(launched: Export, answered: AnsweredRequest) -> JobFile:
    """Return the values of a serving plan; raises ExportError for one that the chart can't run."""
    require_launcher(launched, (Launcher.VLLM,), "llm-d's chart runs vLLM")
    found = servers_by_role(launched, answered, "a release of llm-d's chart")
    first = next(iter(found.values()))
    resource, engine = resource_of(first.device), first.servers.engine
    assert engine is not None, "vLLM's engine is told apart"
    if resource not in _IMAGES:
        raise ExportError(
            "images of llm-d are for GPUs",
            given=resource,
            allowed=", ".join(_IMAGES),
            remedy="export with --on kubernetes",
        )
    if not _HUB_ID.fullmatch(engine.model):
        raise ExportError(
            "llm-d's chart loads a checkpoint of the Hugging Face Hub, or of a volume that the cluster has",
            given=engine.model,
            allowed="a name of the Hub, ORGANISATION/NAME",
            remedy="name the model so in the request, or export with --on kubernetes",
        )
    kind, image = _IMAGES[resource]
    is_pooled = Role.PREFILL in found
    pods = {"decode" if role is Role.WORKER else role.value: _pods(each, image, resource, role) for role, each in found.items()}
    values = {
        "modelArtifacts": {"name": engine.model, "uri": f"hf://{engine.model}"},
        "accelerator": {"type": kind},
        "routing": {"servicePort": _SERVED_AT, "proxy": {"enabled": is_pooled}},
        **pods,
        **({} if is_pooled else {"prefill": {"create": False}}),
    }
    submit = f"helm install {first.name} {CHART}/{CHART} --version {VERSION} -f {FILE}"
    return JobFile(FILE, yaml_text(values), submit, _assumptions(first, image))


def _pods(serving: Serving, image: str, resource: str, role: Role) -> dict[str, Any]:
    servers, engine = serving.servers, serving.servers.engine
    assert engine is not None, "vLLM's engine is told apart"
    if servers.nodes > 1:
        raise ExportError(
            "servers of llm-d's chart have one node each here: of several it starts data-parallel ranks alone",
            given=f"{servers.nodes} nodes a server",
            remedy="export with --on kubernetes, or restrict search.tp and search.pp to the devices of a node",
        )
    parallelism, words = _told_apart(engine)
    port = _BEHIND_THE_ROUTER if role is Role.DECODE else _SERVED_AT
    container = {
        "name": "vllm",
        "image": image,
        "modelCommand": "vllmServe",
        "args": [literal(word) for word in words],
        "env": _environment(engine, role),
        "ports": [{"containerPort": port}],
        # The chart counts tensor x data devices, and no pipeline.
        "resources": {"limits": {resource: str(serving.devices_per_node // engine.copies)}},
        # Requests come once weights are loaded, however long that takes.
        "extraConfig": {"readinessProbe": {"httpGet": {"path": "/health", "port": port}}},
        "volumeMounts": [{"name": _SHARED_MEMORY, "mountPath": "/dev/shm"}],
    }
    return {
        "create": True,
        "replicas": servers.count * engine.copies,
        "parallelism": parallelism,
        "containers": [container],
        "volumes": [{"name": _SHARED_MEMORY, "emptyDir": {"medium": "Memory"}}],
    }


def _told_apart(engine: ReplicaEngine) -> tuple[dict[str, int], list[str]]:
    """The degrees that the chart writes into the command, and all other words."""
    degrees = {"tensor": 1, "data": 1}
    rest: list[str] = []
    words = iter(engine.words)
    for word in words:
        if word in _DEGREES:
            degrees[_DEGREES[word]] = int(next(words))
        else:
            rest.append(word)
    return degrees | {"dataLocal": degrees["data"], "workers": 1}, rest


def _environment(engine: ReplicaEngine, role: Role) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"name": name, "value": literal(value)} for name, value in engine.environment]
    if role is not Role.WORKER:
        found += [
            {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": str(SIDE_CHANNEL_PORT)},
        ]
    return found


def _assumptions(serving: Serving, image: str) -> tuple[str, ...]:
    return (
        f"helm repo add {CHART} https://llm-d-incubation.github.io/{CHART}/ was run, and an InferencePool of llm-d routes "
        "to pods of its label",
        f"{image} holds llm-d's own release of vLLM; the flags are those of {serving.runs}",
        "pods may load the checkpoint (modelArtifacts.authSecretName names a secret with HF_TOKEN where it is gated)",
    )
