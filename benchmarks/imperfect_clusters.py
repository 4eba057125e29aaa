"""The cost of lost devices, slow links and spines; the gain of idle devices, replicas by node group and unlike stages.

Run from the root of the repository: python -m benchmarks.imperfect_clusters
Every plan is searched with proof and checked; CPU seconds are of one core.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, NodeType, part_of_node
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.answer.document import record_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import Stage
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import BatchShares, Recompute, Space, StageDegrees
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import plan_training
from meshwright.solver.verify.check import check

H100, A100 = node_type("dgx-h100"), node_type("dgx-a100")
EVERYTHING = Search()
ONE_F_ONE_B = Search(space=Space.FREE, cp=(1,), ep=(1,), schedules=(Schedule.ONE_F_ONE_B,))


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table."""

    name: str
    model: str
    cluster: Cluster
    global_batch: int
    seq_len: int
    search: Search = EVERYTHING


def of_nodes(*nodes: tuple[NodeType, int]) -> Cluster:
    """A cluster of node groups called a, b ..."""
    return Cluster(tuple(NodeGroup(name, node, count) for name, (node, count) in zip("abc", nodes, strict=False)))


def cases() -> Iterator[Case]:
    """The rows of docs/benchmarks-training.md, in order."""
    lost = part_of_node(H100, 7)
    damaged = of_nodes((H100, 2), (lost, 1))
    yield Case("three whole nodes", "llama-3.1-8b", of_nodes((H100, 3)), 512, 8192)
    yield Case("two whole nodes", "llama-3.1-8b", of_nodes((H100, 2)), 512, 8192)
    yield Case("two whole nodes and one of seven", "llama-3.1-8b", damaged, 512, 8192)
    yield Case("the same, idle devices", "llama-3.1-8b", damaged, 512, 8192, Search(idle_groups=("b",)))
    narrow = replace(ONE_F_ONE_B, tp=(1, 2), recompute=(Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL))
    by_group = replace(narrow, batch_shares=BatchShares.BY_GROUP)
    yield Case("the same, replicas by node group", "llama-3.1-8b", damaged, 512, 8192, by_group)
    yield Case("four nodes of seven", "llama-3.1-8b", of_nodes((lost, 4)), 512, 8192)
    slow = replace(H100, name="slow", inter=replace(H100.inter, bytes_per_s=H100.inter.bytes_per_s / 8))
    equal = of_nodes((H100, 4), (H100, 4))
    yield Case("eight nodes", "llama-3.1-70b", equal, 512, 8192)
    yield Case("half with slow cards", "llama-3.1-70b", of_nodes((H100, 4), (slow, 4)), 512, 8192)
    yield Case("8:1 spine", "llama-3.1-70b", replace(equal, oversubscription=8.0), 512, 8192)
    leaves = replace(equal, oversubscription=8.0, nodes_per_leaf=4)
    yield Case("8:1 spine over leaves of four", "llama-3.1-70b", leaves, 512, 8192)
    mixed = of_nodes((A100, 1), (H100, 1))
    yield Case("mixed nodes", "llama-3.1-8b", mixed, 64, 4096, narrow)
    yield Case("mixed nodes, replicas by node group", "llama-3.1-8b", mixed, 64, 4096, by_group)
    for name, cluster, batch, tokens, zero in (
        ("llama-3.1-8b", of_nodes((H100, 3)), 64, 8192, (0, 1)),
        ("llama-3.1-8b", of_nodes((H100, 2)), 64, 4096, (0, 1)),
        ("llama-3.1-70b", of_nodes((H100, 3)), 48, 4096, (0, 1, 2)),
        ("llama-3.1-8b", of_nodes((A100, 1), (H100, 1)), 64, 4096, (0, 1)),
        ("llama-3.1-8b", of_nodes((A100, 2), (H100, 1)), 64, 8192, (0, 1)),
        ("llama-3.1-70b", of_nodes((A100, 8), (H100, 8)), 256, 8192, (0, 1)),
    ):
        recompute = (Recompute.NONE, Recompute.FULL)
        same = replace(ONE_F_ONE_B, recompute=recompute, zero_stages=zero, microbatch=(1, 2))
        for search in (same, replace(same, stage_degrees=StageDegrees.ANY)):
            nodes = " and ".join(f"{group.nodes} {group.node.name}" for group in cluster.groups)
            title = f"{name} on {nodes}, {search.stage_degrees.value} degrees"
            yield Case(title, name, cluster, batch, tokens, search)


def main() -> None:
    """A Markdown table: the best plan of each case, its gap, and what the search took."""
    print("| case | s a step | gap | devices | plan | CPU s |")
    print("|---|---|---|---|---|---|")
    for case in cases():
        workload = TrainingWorkload("training", global_batch=case.global_batch, seq_len=case.seq_len)
        request = TrainingRequest(model(case.model), case.cluster, workload, search=case.search)
        started = time.process_time()
        plan = plan_training(request, stop=never_stop, progress=ignore_progress)
        seconds = time.process_time() - started
        broken = check(plan, request)
        assert not broken, broken
        certificate = plan.certificate
        step_s = "nothing fits" if certificate.objective is None else f"{certificate.objective:.4g}"
        row = (case.name, step_s, f"{certificate.gap or 0.0:.2%}", plan.devices, _layout(plan), f"{seconds:.1f}")
        print("| " + " | ".join(str(value) for value in row) + " |", flush=True)


def _layout(plan: Plan) -> str:
    """Degrees of runs of stages; of replicas by node group those of each, with their sequences."""
    layouts = [record_of(plan).stages]
    taken = [""]
    if record_of(plan).shares is not None:
        layouts += [pool.stages for pool in record_of(plan).shares.pools]
        taken = [
            f"{n} sequences "
            for n in (record_of(plan).shares.sequences, *(pool.sequences for pool in record_of(plan).shares.pools))
        ]
    return "; ".join(of_pool + _runs(stages) for of_pool, stages in zip(taken, layouts, strict=True))


def _runs(stages: tuple[Stage, ...]) -> str:
    runs = groupby((stage.axes.dp, stage.axes.tp) for stage in stages)
    return ", ".join(f"{len(list(run))} x dp {dp} tp {tp}" for (dp, tp), run in runs)


if __name__ == "__main__":
    main()
