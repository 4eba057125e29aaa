"""Kubernetes: an Indexed Job of one pod a node, its files in a ConfigMap, and a headless Service that names its pods.

Objects and fields are those of the Kubernetes API reference: batch/v1 Job, v1 Service and ConfigMap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.app.base.quoting import yaml_text
from meshwright.app.launching.exporters.launch import SCRIPT_NAME
from meshwright.app.launching.exporters.schedulers.job import Job, JobFile
from meshwright.app.launching.parts.command import PORT
from meshwright.costmodels.calibration.calibration import calibration_key
from meshwright.costmodels.cluster.cluster import Device
from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.hardware.generations import generation_of

FILE = "job.yaml"
IMAGE = "registry.example/trainer:latest"
"""A stand-in."""
_FOLDER = "/launch"
ASSUMPTIONS = (
    f"{IMAGE} is a stand-in: name an image that has the launcher, and whose working directory the command runs in",
    "each pod has a node of its own: it asks for all devices of one",
)


def job_file(job: Job) -> JobFile:
    """Return the manifest; raises ExportError where pods would have to differ."""
    require_alike(job, "a Kubernetes job")
    is_alone = job.n_nodes == 1
    parts = [config_map(job.name, job.files), *([] if is_alone else [_service(job)]), _job(job, is_alone=is_alone)]
    return JobFile(FILE, manifest(parts), f"kubectl apply -f {FILE}", ASSUMPTIONS)


def require_alike(job: Job, what: str) -> None:
    """Raise ExportError where pods would have to differ."""
    if job.host_file is not None:
        raise ExportError(
            "this launcher starts the other nodes itself, which pods do not allow",
            given=f"a command of the first of {job.n_nodes} nodes",
            remedy="export to a launcher that runs on every node, or for slurm",
        )
    require_equal_nodes(job, what)


def require_equal_nodes(job: Job, what: str) -> None:
    """Raise ExportError where nodes would have to differ."""
    if not job.is_even:
        raise ExportError(
            f"{what} gives all of its nodes as many devices",
            given=", ".join(str(count) for count in job.devices_per_node[:8]) + (", ..." if job.n_nodes > 8 else ""),
            remedy="plan on nodes with equal numbers of devices, or export without --on and start the script on each node",
        )
    if job.node_kinds > 1:
        raise ExportError(
            f"the nodes of {what} are of one kind, and which gets which rank can't be said",
            given=f"a plan on {job.node_kinds} node groups",
            remedy="plan on one node group, or export without --on and start the script on each node",
        )


def manifest(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return objects as the text of one file."""
    return "---\n".join(map(yaml_text, parts))


def config_map(name: str, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the object that holds the files of a launch."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": dict(sorted(files.items()))}


def container(name: str, image: str, commands: Sequence[str], *, device: Device, count: int) -> dict[str, Any]:
    """Return a container that runs commands beside the files of its launch, with ``count`` devices."""
    return {
        "name": name,
        "image": image,
        "command": ["sh", "-c", " && ".join([f"cp {_FOLDER}/* .", *commands])],
        "resources": {"limits": {resource_of(device): count}},
        "volumeMounts": [
            {"name": "launch", "mountPath": _FOLDER},
            # Collectives inside a node go through it; a container's own is 64 MiB.
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }


def literal(word: str) -> str:
    """A word that Kubernetes expands nothing in: of two dollar signs it makes one (API reference, Container, args)."""
    return word.replace("$", "$$")


def resource_of(device: Device) -> str:
    """Return the name under which the maker's plugin offers devices to pods."""
    return generation_of(calibration_key(device.calibration)).kubernetes_resource


def volumes(name: str) -> list[dict[str, Any]]:
    """Return the volumes that such a container mounts."""
    return [
        {"name": "launch", "configMap": {"name": name}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]


def _service(job: Job) -> dict[str, Any]:
    """A name in DNS for each pod, also before it is ready: all wait for the first."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": job.name},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": job.name},
            "ports": [{"name": "torchrun", "port": PORT}],
        },
    }


def _job(job: Job, *, is_alone: bool) -> dict[str, Any]:
    spec = indexed_job(job, first_pod=None if is_alone else f"{job.name}-0.{job.name}")
    if not is_alone:
        spec["template"]["spec"]["subdomain"] = job.name
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job.name}, "spec": spec}


def indexed_job(job: Job, *, first_pod: str | None) -> dict[str, Any]:
    """Return the spec of a Job of one pod a node, each of which is told its index and the name of the first."""
    # The job's controller gives each pod its index, and the first one's name is made of it.
    among = [] if first_pod is None else ["export NODE_RANK=$JOB_COMPLETION_INDEX", f"export MASTER_ADDR={first_pod}"]
    trainer = container("train", IMAGE, [*among, f"exec sh ./{SCRIPT_NAME}"], device=job.device, count=job.devices_per_node[0])
    return {
        "completions": job.n_nodes,
        "parallelism": job.n_nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": {"restartPolicy": "Never", "containers": [trainer], "volumes": volumes(job.name)}},
    }
