"""vLLM with several kinds of workers: one server group a kind, and the weights by which a router shares requests among them."""

from __future__ import annotations

import json
from dataclasses import replace

from meshwright.app.exporters.export import Export
from meshwright.app.exporters.served import require_engine
from meshwright.app.exporters.vllm.server import PORT, VERSION, export_replicas, replicas_share_a_server, serve_command
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.answer.plan import Plan, WorkerKind
from meshwright.solver.answer.stage import DeviceRange
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.request import ServingRequest

WEIGHTS_FILE = "router-weights.json"


def export_kinds(plan: Plan, request: ServingRequest) -> Export:
    """A script for a server of each kind, and each server's share of the requests."""
    require_engine(request, ServingEngine.VLLM)
    files, weights, assumptions = {}, {}, []
    for index, kind in enumerate(plan.kinds, start=1):
        name = f"kind-{index}.sh"
        view, own = _alone(plan, kind, request)
        together = replicas_share_a_server(view, own)
        command = serve_command(view, own, together=together, port=PORT + index - 1)
        files[name] = f"#!/bin/bash\n{command}\n"
        servers = 1 if together else kind.serving.replicas
        weights[name] = {"servers": servers, "weight_each": kind.share / servers}
        ranks = ", ".join(f"{d.first} to {d.first + d.count - 1}" for stage in kind.stages for d in stage.devices)
        where = f"{name}, on devices of ranks {ranks} ({own.cluster.groups[0].node.name}; CUDA_VISIBLE_DEVICES)"
        assumptions += [f"{where}: {said}" for said in export_replicas(view, own).assumptions]
    shared = ", ".join(f"{each['weight_each']:.4g} to each of {each['servers']} {name}" for name, each in weights.items())
    assumptions.append(
        f"a router in front draws a server for each request at random by weight ({WEIGHTS_FILE}): {shared}; evenly spread "
        "requests would overload the slower kind"
    )
    return Export(
        launcher=Launcher.VLLM,
        version=VERSION,
        command=" & ".join(f"bash {name}" for name in files) + " & wait",
        files={**files, WEIGHTS_FILE: json.dumps(weights, indent=2) + "\n"},
        assumptions=tuple(assumptions),
    )


def _alone(plan: Plan, kind: WorkerKind, request: ServingRequest) -> tuple[Plan, ServingRequest]:
    """A kind as a plan of its own on its node group alone, whose ranks begin at 0."""
    first_rank = 0
    lowest = min(devices.first for stage in kind.stages for devices in stage.devices)
    for group in request.cluster.groups:
        if lowest < first_rank + group.n_devices:
            break
        first_rank += group.n_devices
    stages = tuple(
        replace(stage, devices=tuple(DeviceRange(d.first - first_rank, d.count) for d in stage.devices))
        for stage in kind.stages
    )
    return replace(plan.of_kind(kind), stages=stages), replace(request, cluster=Cluster((group,)))
