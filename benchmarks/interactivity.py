"""Steady states of the chart of throughput per device against tokens/s per user, against simulated closed loops.

Run from the root of the repository: python -m benchmarks.interactivity
Prints the relative errors of the mean time per output token and of the throughput of Llama-3.1-8B on H100 at 1 to 64 sequences.
Batches that their prompts are too slow to keep full are no points of the chart and are left out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.queueing.analytic.percentiles import rates_at, steady_batches
from meshwright.costmodels.queueing.simulation.replica import simulate_closed_loop
from meshwright.costmodels.units import DType
from meshwright.solver.problem.choices import Objective
from meshwright.solver.problem.request import ServingRequest, ServingWorkload, Slo
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import FixedLength, PoissonArrivals
from meshwright.solver.serving.engines.engine import EngineBuilder
from meshwright.solver.serving.engines.layouts import layouts
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.promise.candidates import Candidate
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.promised import promised_of

LENGTHS = ((2000, 100), (4000, 500))
LAYOUTS = ("tp 1", "tp 4", "tp 1 x pp 4")
STEP_TOKENS = (512, 8192)
SEQUENCES = (1, 4, 16, 64)


def main() -> None:
    """Print a line for each batch, then medians and largest errors without and with a pipeline."""
    print("| in, out | layout | tokens a step | sequences | TPOT | throughput |\n| --- | --- | --- | --- | --- | --- |")
    errors: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for prompt, output in LENGTHS:
        request = _request(prompt, output)
        evaluator = Evaluator(request.workload, promised_of(request), request.search.seed)
        builder = EngineBuilder(request, sequence_tokens=evaluator.longest_request)
        for layout in layouts(request):
            for candidate in evaluator.candidates(builder.engine(layout)) if layout.name in LAYOUTS else ():
                found = _errors(candidate, evaluator) if _is_measured(candidate) else None
                if found is not None:
                    errors[layout.pp > 1].append(found)
                    limits = f"{candidate.step_tokens:,} | {candidate.sequences}"
                    print(f"| {prompt}, {output} | {layout.name} | {limits} | {found[0]:+.1%} | {found[1]:+.1%} |")
    for pipelined, pairs in errors.items():
        sizes = np.abs(np.array(pairs))
        medians, largest = np.median(sizes, axis=0), sizes.max(axis=0)
        said = f"TPOT {medians[0]:.1%} (at most {largest[0]:.1%}), throughput {medians[1]:.1%} (at most {largest[1]:.1%})"
        print(f"{'with' if pipelined else 'without'} a pipeline, {len(pairs)} batches, median: {said}")


def _is_measured(candidate: Candidate) -> bool:
    return candidate.step_tokens in STEP_TOKENS and candidate.sequences in SEQUENCES


def _errors(candidate: Candidate, evaluator: Evaluator) -> tuple[float, float] | None:
    """Relative errors of time per output token and of requests per second; None where prompts are too slow."""
    load, times, clients = evaluator.traffic.load_of(Share(1.0)), candidate.engine.times, candidate.sequences
    steady = steady_batches(rates_at(times, load, candidate.limits, np.array([float(clients)])), load)
    if steady.prompts_share[0] > 1.0:
        return None
    (stream,) = evaluator.traffic.streams(Share(1.0), max(300, 20 * clients))
    result = simulate_closed_loop(times, stream, candidate.limits, concurrency=clients)
    answered = np.sort(result.answered_s)
    low, high = len(answered) // 4, 3 * len(answered) // 4
    per_s = (high - low) / float(answered[high] - answered[low])
    return float(steady.tpot_s[0] / np.mean(result.tpot_s) - 1.0), float(steady.requests_per_s[0] / per_s - 1.0)


def _request(prompt: int, output: int) -> ServingRequest:
    node = replace(node_type("dgx-h100"), devices_per_node=8)
    return ServingRequest(
        model=model("llama-3.1-8b"),
        cluster=Cluster((NodeGroup("node", node, 1),)),
        workload=ServingWorkload(
            kind="serving",
            arrivals=PoissonArrivals(process="poisson", requests_per_s=1.0),
            prompt_tokens=FixedLength(prompt),
            output_tokens=FixedLength(output),
            precision=DType.BF16,
        ),
        slo=Slo(),
        objective=Objective.DEVICES,
        search=Search(),
    )


if __name__ == "__main__":
    main()
