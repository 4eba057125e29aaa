"""GPT-3 175B on 48 nodes of eight V100 of 16 GB, few sequences a step: token slices against whole sequences.

Run from the root of the repository: python -m benchmarks.token_slices
First TeraPipe's two settings of this model (Li et al. 2021, Table 1: batch 2; tp 8 with 48 stages, tp 4 with 96), then the best
plan of the free space without slices.
"""

from __future__ import annotations

import time
from dataclasses import replace

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, NodeType
from meshwright.costmodels.hardware import device, node_type
from meshwright.costmodels.pipeline import Schedule
from meshwright.costmodels.units import DType
from meshwright.solver.answer.document import record_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Recompute, Space
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import plan_training
from meshwright.solver.verify.check import check

SETTINGS = [(8, 48), (4, 96)]
"""tp and stages."""
SLICES = (4, 8, 16)
WAYS: dict[Schedule, tuple[int, ...]] = {
    Schedule.GPIPE: (),
    Schedule.ONE_F_ONE_B: (),
    Schedule.TERAPIPE: SLICES,
    Schedule.SEQ_1F1B: SLICES,
}


def p3_16xlarge() -> NodeType:
    """AWS p3.16xlarge: the links inside a p3dn node, V100 of 16 GB, 25 Gbit/s between nodes."""
    node = node_type("p3dn")
    inter = replace(node.inter, name="25g-ena", bytes_per_s=25e9 / 8)
    return replace(node, name="p3.16xlarge", device=device("v100-sxm2-16gb"), inter=inter)


def planned(search: Search) -> tuple[Plan, float]:
    """The plan of a step of two sequences of 2,048 tokens, checked, and the CPU seconds that it took."""
    workload = TrainingWorkload("training", global_batch=2, seq_len=2048, precision=DType.FP16)
    request = TrainingRequest(model("gpt3-175b"), Cluster((NodeGroup("p3", p3_16xlarge(), 48),)), workload, search=search)
    started_s = time.process_time()
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    seconds = time.process_time() - started_s
    assert not check(plan, request)
    return plan, seconds


def show(plan: Plan, seconds: float, name: str) -> None:
    """One line of a plan."""
    assert record_of(plan).axes is not None and plan.certificate.objective is not None
    axes, slices = (
        record_of(plan).axes,
        f" x {len(record_of(plan).token_slices)} slices" if record_of(plan).token_slices else "",
    )
    layout = f"dp {axes.dp} tp {axes.tp} pp {axes.pp} cp {axes.cp}, {record_of(plan).schedule}{slices}"
    print(f"{name}: {plan.certificate.objective:.3f} s, {plan.certificate.status}, {layout}, {seconds:.1f} CPU s", flush=True)


def main() -> None:
    """Prints the comparison."""
    narrow = Search(space=Space.FREE, dp=(1,), cp=(1,), microbatch=(1,), zero_stages=(0,))
    for tp, pp in SETTINGS:
        for schedule, counts in WAYS.items():
            search = replace(narrow, tp=(tp,), pp=(pp,), schedules=(schedule,), token_slices=counts)
            show(*planned(search), f"tp {tp}, {pp} stages")
    whole = Search(space=Space.FREE, zero_stages=(0, 1), recompute=(Recompute.NONE, Recompute.FULL))
    show(*planned(whole), "the whole space, no slices")


if __name__ == "__main__":
    main()
