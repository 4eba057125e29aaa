"""The gain of eager-1F1B where the network between stages is slow, and its memory.

Run from the root of the repository: python -m benchmarks.hidden_sends
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.full_search import request, timed
from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.pipeline import Schedule
from meshwright.costmodels.units import GIB
from meshwright.solver.answer.document import record_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import Search

NETWORKS_GBIT = (200, 100, 25, 10)
"""A node's network: one of the eight ports of a DGX A100, and slower ones."""

CHOICES = {
    "1F1B": (Schedule.ONE_F_ONE_B,),
    "eager-1F1B": (Schedule.EAGER_ONE_F_ONE_B,),
    "interleaved": (Schedule.INTERLEAVED,),
    "all": (),
}


def requests(gbit: float) -> Iterator[tuple[str, TrainingRequest]]:
    """Llama-3.1-70B on 64 A100, tp 8 inside nodes, one sequence a micro-batch, under each choice of schedules."""
    asked = request(model("llama-3.1-70b"), [("dgx-a100", 8)], 256, 4096)
    group = asked.cluster.groups[0]
    node = replace(group.node, inter=replace(group.node.inter, bytes_per_s=gbit * 1e9 / 8))
    cluster = Cluster((replace(group, node=node),))
    for name, schedules in CHOICES.items():
        search = Search(space=Space.FREE, schedules=schedules, tp=(8,), cp=(1,), microbatch=(1,), zero_stages=(1,))
        yield name, replace(asked, cluster=cluster, search=search)


def cell(plan: Plan) -> str:
    """Step time, pipeline and the fullest device."""
    assert plan.predicted is not None and plan.predicted.step_time_s is not None and record_of(plan).axes is not None
    chunks = len(record_of(plan).stages[0].chunk_layers)
    schedule = f"{record_of(plan).schedule}{f' x{chunks}' if chunks else ''}"
    fullest = f"{plan.predicted.peak_memory_bytes / GIB:.1f} GiB"
    return f"{plan.predicted.step_time_s:.2f} s (pp {record_of(plan).axes.pp}, {schedule}, {fullest})"


if __name__ == "__main__":
    print(f"| network, Gbit/s | {' | '.join(CHOICES)} |\n|{'---|' * (len(CHOICES) + 1)}")
    for gbit in NETWORKS_GBIT:
        print(f"| {gbit} | {' | '.join(cell(timed(asked)[0]) for _, asked in requests(gbit))} |", flush=True)
