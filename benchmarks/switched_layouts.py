"""The gain in throughput from switching layouts between prompts and answers, beside the figures of Seesaw (arXiv 2503.06433).

``python -m benchmarks.switched_layouts`` plans the largest goodput without targets on one node of eight devices, of workers
in one layout (chunked prefill, every layout and batch limit) and of workers that switch, and prints a Markdown table.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.solver.answer.layouts import Replicas, Switched
from meshwright.solver.answer.plan import Plan
from meshwright.solver.api import solve
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest, ServingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import FixedLength, PoissonArrivals

_LEAST_RATE = 1e-3
"""Requests a second that are asked for: less than any of these answers."""


@dataclass(frozen=True)
class Case:
    """A model on a node, and the lengths of its requests."""

    model: str
    node: str
    prompt: int
    output: int


CASES = (
    Case("qwen3-32b", "l4-pcie", 3000, 250),
    Case("qwen3-32b", "l4-pcie", 300, 300),
    Case("llama-3.1-70b", "l4-pcie", 3000, 250),
    Case("llama-3.1-70b", "l4-pcie", 300, 300),
    Case("llama-3.1-70b", "dgx-a100-40gb", 3000, 250),
)
"""8 L4 without NVLink, as in the paper, and 8 A100 with it; long prompts as of summaries, short ones as of chats."""


def main() -> None:
    """Print a row for each case."""
    print("| model | node | prompt, output | one layout | req/s | layouts that switch | req/s | gain | changes | CPU s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for case in CASES:
        began = time.process_time()
        one, two = (_planned(case, mode) for mode in (ServingMode.AGGREGATED, ServingMode.SWITCHED))
        rates = [1.0 / (plan.certificate.objective or 1.0) for plan in (one, two)]
        assert isinstance(two.layout, Switched)
        prompts = two.layout.prompts
        print(
            f"| {case.model} | {case.node} | {case.prompt}, {case.output} | {_degrees(one)} | {rates[0]:.3f} | "
            f"{_degrees(two)} | {rates[1]:.3f} | {rates[1] / rates[0]:.2f} | {prompts.switching_share:.1%}, every "
            f"{prompts.cycle_s:.0f} s | {time.process_time() - began:.0f} |",
            flush=True,
        )


def _planned(case: Case, mode: ServingMode) -> Plan:
    request = ServingRequest(
        model=model(case.model),
        cluster=Cluster((NodeGroup("node", node_type(case.node), 1),)),
        workload=ServingWorkload(
            kind="serving",
            arrivals=PoissonArrivals(process="poisson", requests_per_s=_LEAST_RATE),
            prompt_tokens=FixedLength(case.prompt),
            output_tokens=FixedLength(case.output),
        ),
        objective=Objective.THROUGHPUT,
        search=Search(modes=(mode,)),
    )
    return solve(request, stop=never_stop, progress=ignore_progress)


def _degrees(plan: Plan) -> str:
    assert isinstance(plan.layout, Replicas | Switched)
    workers = plan.layout.all_workers
    return f"{workers[0].count} x " + " / ".join(f"tp {each.axes.tp} pp {each.axes.pp}" for each in workers)


if __name__ == "__main__":
    main()
