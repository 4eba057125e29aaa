"""Kubernetes: an Indexed Job of one pod a node, its files in a ConfigMap, and a headless Service that names its pods.

Objects and fields are those of the Kubernetes API reference: batch/v1 Job, v1 Service and ConfigMap.
"""

from __future__ import annotations

from typing import Any

import yaml

from meshwright.app.exporters.command import PORT
from meshwright.app.exporters.launch import SCRIPT_NAME
from meshwright.app.exporters.schedulers.job import Job, JobFile
from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.hardware.generations import generation_of

FILE = "job.yaml"
IMAGE = "registry.example/trainer:latest"
"""A stand-in."""
_FOLDER = "/launch"
_ASSUMPTIONS = (
    f"{IMAGE} is a stand-in: name an image that has the launcher, and whose working directory the command runs in",
    "each pod has a node of its own: it asks for all devices of one",
)


def job_file(job: Job) -> JobFile:
    """Return the manifest; raises ExportError where pods would have to differ."""
    if job.host_file is not None:
        raise ExportError(
            "this launcher starts the other nodes itself, which pods do not allow",
            given=f"a command of the first of {job.n_nodes} nodes",
            remedy="export to a launcher that runs on every node, or for slurm",
        )
    if not job.is_even:
        raise ExportError(
            "a Kubernetes job gives all of its pods as many devices",
            given=", ".join(str(count) for count in job.devices_per_node[:8]) + (", ..." if job.n_nodes > 8 else ""),
            remedy="plan on nodes with equal numbers of devices, or export without --on and start the script on each node",
        )
    if job.node_kinds > 1:
        raise ExportError(
            "the pods of a Kubernetes job are of one kind of nodes, and which gets which rank can't be said",
            given=f"a plan on {job.node_kinds} node groups",
            remedy="plan on one node group, or export without --on and start the script on each node",
        )
    is_alone = job.n_nodes == 1
    parts = [_config_map(job), *([] if is_alone else [_service(job)]), _job(job, is_alone=is_alone)]
    text = yaml.safe_dump_all(parts, sort_keys=False, allow_unicode=False, width=1000)
    return JobFile(FILE, text, f"kubectl apply -f {FILE}", _ASSUMPTIONS)


def _config_map(job: Job) -> dict[str, Any]:
    files = dict(sorted(job.files.items()))
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": job.name}, "data": files}


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
    resource = generation_of(job.device.calibration).kubernetes_resource
    # The job's controller gives each pod its index, and the first one's name is made of it.
    among = [] if is_alone else ["export NODE_RANK=$JOB_COMPLETION_INDEX", f"export MASTER_ADDR={job.name}-0.{job.name}"]
    container = {
        "name": "train",
        "image": IMAGE,
        "command": ["sh", "-c", " && ".join([f"cp {_FOLDER}/* .", *among, f"exec sh ./{SCRIPT_NAME}"])],
        "resources": {"limits": {resource: job.devices_per_node[0]}},
        "volumeMounts": [
            {"name": "launch", "mountPath": _FOLDER},
            # Collectives inside a node go through it; a container's own is 64 MiB.
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }
    pod: dict[str, Any] = {
        **({} if is_alone else {"subdomain": job.name}),
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [
            {"name": "launch", "configMap": {"name": job.name}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job.name},
        "spec": {
            "completions": job.n_nodes,
            "parallelism": job.n_nodes,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": {"spec": pod},
        },
    }
