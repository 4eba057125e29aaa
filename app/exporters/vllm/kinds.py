"""vLLM with several kinds of workers: one server group a kind, and the weights by which a router shares requests among them."""

from __future__ import annotations

import json
from dataclasses import replace

from meshwright.app.exporters.export import Export
from meshwright.app.exporters.served import require_engine
from meshwright.app.exporters.vllm.server import PORT, VERSION, replicas_share_a_server, serve_command, server_assumptions
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.solver.answer.layouts import Kinds
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import DeviceRange
from meshwright.solver.answer.workers import Workers
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.request import ServingRequest

WEIGHTS_FILE = "router-weights.json"


def export_kinds(plan: Plan, layout: Kinds, request: ServingRequest) -> Export:
    """A script for a server of each kind, and each server's share of the requests."""
    require_engine(request, ServingEngine.VLLM)
    files, weights, assumptions = {}, {}, []
    for index, kind in enumerate(layout.kinds, start=1):
        name = f"kind-{index}.sh"
        planned = kind.replicas.workers
        workers, own = _on_own_group(planned, request)
        together = replicas_share_a_server(workers, own)
        command = serve_command(plan.model, workers, own, together=together, port=PORT + index - 1)
        files[name] = f"#!/bin/bash\n{command}\n"
        servers = 1 if together else workers.count
        weights[name] = {"servers": servers, "weight_each": kind.share / servers}
        ranks = ", ".join(f"{d.first} to {d.first + d.count - 1}" for d in planned.device_ranges)
        where = f"{name}, on devices of ranks {ranks} ({own.cluster.groups[0].node.name}; CUDA_VISIBLE_DEVICES)"
        assumptions += [f"{where}: {said}" for said in server_assumptions(plan.model, workers, own, together=together)]
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


def _on_own_group(workers: Workers, request: ServingRequest) -> tuple[Workers, ServingRequest]:
    """The workers on their node group alone, whose ranks begin at 0."""
    first_rank = 0
    lowest = min(devices.first for devices in workers.device_ranges)
    for group in request.cluster.groups:
        if lowest < first_rank + group.n_devices:
            break
        first_rank += group.n_devices
    stages = tuple(
        replace(stage, devices=tuple(DeviceRange(d.first - first_rank, d.count) for d in stage.devices))
        for stage in workers.stages
    )
    return replace(workers, stages=stages), replace(request, cluster=Cluster((group,)))
