"""The worth of several kinds of workers: goodput and fewest devices of clusters of two node groups, one kind against two.

    python -m benchmarks.mixed_workers

Llama-3.1-70B in bf16, 2,000 tokens in and 300 out, P95 TTFT 2 s and TPOT 60 ms. CPU seconds are of one thread, the second plan
of a process.
"""

from __future__ import annotations

import time

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, part_of_node
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.units import DType
from meshwright.solver.answer.layouts import Kinds, Replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.api import solve
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import ServingRequest, ServingWorkload, Slo
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import FixedLength, PoissonArrivals

H100, A100 = node_type("dgx-h100"), node_type("dgx-a100")
CLUSTERS = {
    "16 A100 + 16 H100": Cluster((NodeGroup("a100", A100, 2), NodeGroup("h100", H100, 2))),
    "32 H100, 4 of each of two nodes lost": Cluster((NodeGroup("whole", H100, 2), NodeGroup("rest", part_of_node(H100, 4), 2))),
    "32 H100, 2 of each of two nodes lost": Cluster((NodeGroup("whole", H100, 2), NodeGroup("rest", part_of_node(H100, 6), 2))),
    "28 A100 (a node of 4)": Cluster((NodeGroup("whole", A100, 3), NodeGroup("rest", part_of_node(A100, 4), 1))),
}


def request(cluster: Cluster, objective: Objective, rate: float, kinds: int) -> ServingRequest:
    """The question on a cluster."""
    workload = ServingWorkload(
        kind="serving",
        arrivals=PoissonArrivals(process="poisson", requests_per_s=rate),
        prompt_tokens=FixedLength(2000),
        output_tokens=FixedLength(300),
        precision=DType.BF16,
    )
    slo = Slo(p95_ttft_ms=2000.0, p95_tpot_ms=60.0)
    search = Search(worker_kinds=kinds, time_limit_s=600.0)
    return ServingRequest(model("llama-3.1-70b"), cluster, workload, slo=slo, objective=objective, search=search)


def described(plan: Plan) -> str:
    """A plan's workers in words."""
    assert isinstance(plan.layout, Replicas | Kinds)
    parts = []
    for workers in plan.layout.all_workers:
        degrees = f"tp {workers.axes.tp}" + (f" x pp {workers.axes.pp}" if workers.axes.pp > 1 else "")
        parts.append(f"{workers.count} x {degrees} on ranks from {workers.device_ranges[0].first}")
    return ", ".join(parts)


def main() -> None:
    """Print a row for each cluster and number of kinds."""
    solve(request(Cluster((NodeGroup("warm", H100, 1),)), Objective.DEVICES, 2.0, 2), stop=never_stop, progress=ignore_progress)
    print("| cluster | kinds | requests/s | devices | CPU s | simulations | status | workers |")
    for name, cluster in CLUSTERS.items():
        for kinds in (1, 2):
            started = time.process_time()
            asked = request(cluster, Objective.THROUGHPUT, 0.5, kinds)
            plan = solve(asked, stop=never_stop, progress=ignore_progress)
            seconds = time.process_time() - started
            assert plan.predicted is not None
            figures = (kinds, f"{plan.predicted.tokens_per_s / 300:.2f}", plan.devices, f"{seconds:.1f}", plan.search.evaluated)
            print("|", " | ".join(map(str, (name, *figures, plan.certificate.status.value, described(plan)))), "|", flush=True)


if __name__ == "__main__":
    main()
