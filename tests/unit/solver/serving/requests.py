"""Serving requests that plan in a second: an 8B model on one small node."""

from __future__ import annotations

from dataclasses import replace

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.units import DType
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import Length, ServingRequest, ServingWorkload, Slo
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import FixedLength, PoissonArrivals


def cluster(*, node: str = "dgx-h100", nodes: int = 1, per_node: int = 4, name: str = "a") -> Cluster:
    return Cluster((NodeGroup(name, replace(node_type(node), devices_per_node=per_node), nodes),))


def serving_request(
    *,
    rate: float = 4.0,
    prompt: Length | int = 2000,
    output: Length | int = 100,
    ttft_ms: float | None = 500.0,
    tpot_ms: float | None = 20.0,
    precision: DType = DType.BF16,
    objective: Objective = Objective.DEVICES,
    on: Cluster | None = None,
    model_name: str = "llama-3.1-8b",
    search: Search | None = None,
    confidence: float = 0.5,
) -> ServingRequest:
    """A request whose targets are met by medians, unless it asks for more."""
    return ServingRequest(
        model=model(model_name),
        cluster=on or cluster(),
        workload=ServingWorkload(
            kind="serving",
            arrivals=PoissonArrivals(process="poisson", requests_per_s=rate),
            prompt_tokens=FixedLength(prompt) if isinstance(prompt, int) else prompt,
            output_tokens=FixedLength(output) if isinstance(output, int) else output,
            precision=precision,
        ),
        slo=Slo(p95_ttft_ms=ttft_ms, p95_tpot_ms=tpot_ms, confidence=confidence),
        objective=objective,
        search=search or Search(),
    )
