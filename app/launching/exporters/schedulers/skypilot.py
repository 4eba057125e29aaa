"""SkyPilot: a task of a plan's nodes on any cloud, or a service of equal servers.

Keys are those of its schemas (sky/utils/schemas.py), variables of nodes those of sky/skylet/constants.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.app.base.quoting import here_document, shell_word, yaml_text
from meshwright.app.launching.exporters.launch import SCRIPT_NAME
from meshwright.app.launching.exporters.schedulers.job import SKYPILOT, Job, JobFile, require_named
from meshwright.app.launching.exporters.schedulers.kubernetes import require_equal_nodes
from meshwright.app.launching.exporters.schedulers.serving import FOLLOWER_SCRIPT, among_nodes, serving_of
from meshwright.app.launching.parts.export import Export
from meshwright.costmodels.cluster.cluster import Device
from meshwright.solver.answer.plan import AnsweredRequest

TASK_FILE, SERVICE_FILE = "task.yaml", "service.yaml"
_WHERE = "SkyPilot"
_FIRST = 'FIRST=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)'


def job_file(job: Job) -> JobFile:
    """Return the task of a training plan; raises ExportError where nodes would have to differ."""
    require_equal_nodes(job, "a SkyPilot task")
    run = [*_files(job.files), *(_on_every_node(job) if job.host_file is None else _on_the_first(job, job.host_file))]
    asked, assumed = _resources(job.device, job.devices_per_node[0])
    task = {"name": job.name, "num_nodes": job.n_nodes, "resources": asked, "run": "\n".join([*run, ""])}
    said = (
        *assumed,
        f"the image or a setup that you add to {TASK_FILE} has the launcher; a workdir or file_mounts bring what it reads",
    )
    return JobFile(TASK_FILE, yaml_text(task), f"sky launch -c {job.name} {TASK_FILE}", said)


def service_file(launched: Export, answered: AnsweredRequest) -> JobFile:
    """Return the service of a serving plan; raises ExportError for servers that SkyPilot can't start."""
    serving = serving_of(launched, answered, "a SkyPilot service")
    servers = serving.servers
    run = [*_files(serving.files)]
    if servers.nodes > 1:
        among = among_nodes(servers, rank="SKYPILOT_NODE_RANK", address="FIRST")
        run += [_FIRST, *among, f'[ "$SKYPILOT_NODE_RANK" = 0 ] || exec sh ./{FOLLOWER_SCRIPT}']
    asked, assumed = _resources(serving.device, serving.devices_per_node)
    task = {
        "name": serving.name,
        "num_nodes": servers.nodes,
        "resources": asked | {"ports": servers.port},
        "service": {"readiness_probe": "/health", "replicas": servers.count, "ports": servers.port},
        "run": "\n".join([*run, f"exec sh ./{SCRIPT_NAME}", ""]),
    }
    said = (
        *assumed,
        f"the image or a setup that you add to {SERVICE_FILE} has {serving.runs} and the right to load the checkpoint",
        "a server that is not ready after 20 minutes is started again: set readiness_probe.initial_delay_seconds where loading "
        "takes longer",
    )
    return JobFile(SERVICE_FILE, yaml_text(task), f"sky serve up -n {serving.name} {SERVICE_FILE}", said)


def _resources(device: Device, count: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    named = require_named(device, SKYPILOT, where=_WHERE)
    return {"accelerators": {named.name: count}}, named.assumptions


def _files(files: Mapping[str, str]) -> list[str]:
    return ["set -eu", *(here_document(name, text) for name, text in sorted(files.items()))]


def _on_every_node(job: Job) -> list[str]:
    among = [] if job.n_nodes == 1 else [_FIRST, "export MASTER_ADDR=$FIRST", "export NODE_RANK=$SKYPILOT_NODE_RANK"]
    return [*among, f"exec sh ./{SCRIPT_NAME}"]


def _on_the_first(job: Job, host_file: str) -> list[str]:
    """The task runs on all nodes; the launcher on the first starts the others that the host file lists."""
    return [
        '[ "$SKYPILOT_NODE_RANK" = 0 ] || exit 0',
        f'for host in $SKYPILOT_NODE_IPS; do echo "$host slots={job.devices_per_node[0]}"; done > {shell_word(host_file)}',
        f"exec sh ./{SCRIPT_NAME}",
    ]
