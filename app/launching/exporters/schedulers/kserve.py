"""KServe: an InferenceService whose predictor is a server of one node, as many as the plan has replicas.

Fields are those of serving.kserve.io/v1beta1 InferenceService; the container's name is the one that its controller knows.
"""

from __future__ import annotations

from typing import Any

from meshwright.app.launching.exporters.launch import SCRIPT_NAME
from meshwright.app.launching.exporters.schedulers.job import JobFile
from meshwright.app.launching.exporters.schedulers.kubernetes import config_map, manifest, volumes
from meshwright.app.launching.exporters.schedulers.serving import Serving, image_assumption, server_container, serving_of
from meshwright.app.launching.parts.export import Export
from meshwright.costmodels.errors import ExportError
from meshwright.solver.answer.plan import AnsweredRequest

FILE = "inference-service.yaml"
_CONTAINER = "kserve-container"


def service_file(launched: Export, answered: AnsweredRequest) -> JobFile:
    """Return the manifest of a serving plan; raises ExportError for servers that an InferenceService can't be."""
    serving = serving_of(launched, answered, "an InferenceService")
    if serving.servers.nodes > 1:
        raise ExportError(
            "the servers of an InferenceService have one node each: its several nodes are those of KServe's own runtime",
            given=f"{serving.servers.nodes} nodes a server",
            remedy="export with --on kubernetes, or restrict search.tp and search.pp to the devices of a node",
        )
    text = manifest([config_map(serving.name, serving.files), _inference_service(serving)])
    said = (image_assumption(serving), "KServe is installed, in its Standard mode, which needs no Knative")
    return JobFile(FILE, text, f"kubectl apply -f {FILE}", said)


def _inference_service(serving: Serving) -> dict[str, Any]:
    replicas = serving.servers.count
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": serving.name,
            # Planned servers are always there, each with devices of its own: nothing is to be scaled by load.
            "annotations": {
                "serving.kserve.io/deploymentMode": "Standard",
                "serving.kserve.io/autoscalerClass": "none",
            },
        },
        "spec": {
            "predictor": {
                "minReplicas": replicas,
                "maxReplicas": replicas,
                "containers": [server_container(serving, _CONTAINER, script=SCRIPT_NAME, answers=True)],
                "volumes": volumes(serving.name),
            }
        },
    }
