"""The gain of the full space over the spaces of published planners: ten requests, each searched in every preset.

Run from the root of the repository: python -m benchmarks.presets [number of the first request, from 0] [how many]
All searches are exact and use the same costs; the launcher is torchtitan, which expresses most of every planner's space.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Launcher, System
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.planner import plan_training


@dataclass(frozen=True, slots=True)
class Shared:
    """A request that every planner gets: model, nodes by type, sequences a step, tokens of a sequence."""

    model: str
    nodes: tuple[tuple[str, int], ...]
    global_batch: int
    seq_len: int

    @property
    def name(self) -> str:
        """Short name for the table."""
        nodes = " + ".join(f"{8 * count} {name}" for name, count in self.nodes)
        return f"{self.model}, {nodes}, {self.seq_len} tokens"

    def request(self, system: System | None) -> TrainingRequest:
        """The request in a planner's space, or the full one."""
        groups = tuple(NodeGroup(name, node_type(name), count) for name, count in self.nodes)
        workload = TrainingWorkload("training", global_batch=self.global_batch, seq_len=self.seq_len)
        search = Search(launcher=Launcher.TORCHTITAN, system=system)
        return TrainingRequest(model(self.model), Cluster(groups), workload, search=search)


REQUESTS = (
    Shared("llama-3.1-8b", (("dgx-h100", 1),), 64, 8192),
    Shared("llama-3.1-8b", (("dgx-a100-40gb", 2),), 128, 4096),
    Shared("llama-3.1-8b", (("dgx-h100", 4),), 32, 65536),
    Shared("mistral-nemo-12b", (("dgx-a100", 4),), 256, 8192),
    Shared("mistral-small-24b", (("dgx-a100", 8),), 256, 4096),
    Shared("mistral-small-24b", (("dgx-h100", 4),), 128, 16384),
    Shared("llama-3.1-70b", (("dgx-h100", 8),), 128, 8192),
    Shared("llama-3.1-70b", (("dgx-a100", 8), ("dgx-h100", 8)), 256, 8192),
    Shared("llama-3.1-70b", (("dgx-h100", 64),), 1024, 8192),
    Shared("llama-3.1-405b", (("dgx-h100", 128),), 1024, 8192),
)


def main(first: int = 0, count: int = len(REQUESTS)) -> None:
    """A Markdown table: the full space's step time, and how much longer each planner's best plan takes."""
    print("| request | full space, s | " + " | ".join(system.value for system in System) + " |")
    print("|---|---|" + "---|" * len(System))
    worse, requests = 0, REQUESTS[first : first + count]
    for shared in requests:
        full_s = _objective(_plan(shared.request(None)))
        assert full_s is not None, "the full space has a plan for every request of the list"
        cells = []
        for system in System:
            theirs_s = _objective(_plan(shared.request(system)))
            worse += theirs_s is not None and theirs_s < full_s * (1 - 1e-9)
            cells.append("nothing fits" if theirs_s is None else f"{theirs_s / full_s - 1:+.1%}")
        print(f"| {shared.name} | {full_s:.4g} | {' | '.join(cells)} |", flush=True)
    print(f"\nThe full space is worse than a preset on {worse} of {len(requests) * len(System)}.")


def _plan(request: TrainingRequest) -> Plan:
    """The plan, proven optimal or proven infeasible."""
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    assert plan.certificate.status in (Status.OPTIMAL, Status.INFEASIBLE)
    return plan


def _objective(plan: Plan) -> float | None:
    return plan.certificate.objective


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:3]))
