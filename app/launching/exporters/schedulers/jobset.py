"""JobSet: one Indexed Job of a pod a node, whose names in DNS and whose restarts its controller looks after.

Fields are those of jobset.x-k8s.io/v1alpha2 JobSet.
"""

from __future__ import annotations

from meshwright.app.launching.exporters.schedulers.job import Job, JobFile
from meshwright.app.launching.exporters.schedulers.kubernetes import (
    ASSUMPTIONS,
    config_map,
    indexed_job,
    manifest,
    require_alike,
)

FILE = "jobset.yaml"
_ROLE = "train"


def job_file(job: Job) -> JobFile:
    """Return the manifest; raises ExportError where pods would have to differ."""
    require_alike(job, "a JobSet")
    # The controller names pods by set, role, job and index, in the domain of the set.
    first_pod = None if job.n_nodes == 1 else f"{job.name}-{_ROLE}-0-0.{job.name}"
    jobs = {"name": _ROLE, "replicas": 1, "template": {"spec": indexed_job(job, first_pod=first_pod)}}
    described = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name},
        "spec": {
            # All wait for the first, so that its name has to be known before it is ready.
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [jobs],
        },
    }
    text = manifest([config_map(job.name, job.files), described])
    said = (
        *ASSUMPTIONS,
        "the JobSet controller is installed; a run that can go on from a checkpoint may have more maxRestarts",
    )
    return JobFile(FILE, text, f"kubectl apply -f {FILE}", said)
