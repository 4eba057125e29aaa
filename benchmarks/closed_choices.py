"""What each closed choice of training that launchers can run would gain, and what it costs.

A choice that gains more than 0.5% somewhere here, within 1.5 times the processor time, should be open.

Run from the root of the repository: python -m benchmarks.closed_choices [CHOICE ...]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.hardware import node_type
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choice import TRAINING, Launched, Unnamed
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import LEDGER
from meshwright.solver.training.planner import plan_training
from tests.support.opened_choices import opened

K = 1024
CASES = (
    ("llama-3.1-8b", "dgx-h100", 1, 16, 32 * K),
    ("llama-3.1-8b", "dgx-h100", 1, 8, 64 * K),
    ("llama-3.1-8b", "dgx-a100", 2, 128, 4 * K),
    ("llama-3.1-70b", "dgx-h100", 8, 128, 8 * K),
    ("mixtral-8x7b", "dgx-h100", 2, 128, 4 * K),
)
"""Model, node, nodes, sequences of a step, tokens of each."""

CLOSED = tuple(
    name
    for name, entry in LEDGER.items()
    if entry.lists
    and entry.choice.forms & TRAINING
    and entry.choice.unnamed is Unnamed.DEFAULT
    and entry.choice.launched in (Launched.BY_RULES, Launched.BY_EVERY)
)


def request_of(case: tuple[str, str, int, int, int]) -> TrainingRequest:
    """The request of a case, with all as it is unless named."""
    name, node, nodes, batch, tokens = case
    cluster = Cluster((NodeGroup("nodes", node_type(node), nodes),))
    return TrainingRequest(model(name), cluster, TrainingWorkload("training", batch, tokens))


def solved(request: TrainingRequest) -> tuple[float | None, float]:
    """Seconds of the best plan's step, None without a plan, and seconds of processor time."""
    began_s = time.process_time()
    plan = plan_training(request, stop=never_stop, progress=ignore_progress)
    return plan.certificate.objective, time.process_time() - began_s


def main() -> None:
    """Print a row a case and choice."""
    parser = argparse.ArgumentParser(description="What closed choices would gain.")
    parser.add_argument("names", nargs="*", choices=[*CLOSED, []], help="the choices; all unless named", metavar="CHOICE")
    names = parser.parse_args().names or CLOSED
    for case in CASES:
        request = request_of(case)
        usual_s, usual_cpu_s = solved(request)
        print(f"{case}: {usual_s} s, {usual_cpu_s:.1f} CPU s", flush=True)
        for name in names:
            wide = ("any",) if name == "recompute_modules" else opened(name, group_names=["nodes"])
            search = replace(request.search, **{name: wide})
            try:
                best_s, cpu_s = solved(replace(request, search=search))
            except WorkloadError as refused:
                print(f"  {name}: refused, {refused}")
                continue
            gain = None if best_s is None or usual_s is None else f"{usual_s / best_s - 1:.2%}"
            print(f"  {name}: gains {gain}, takes {cpu_s / usual_cpu_s:.2f} times as long", flush=True)


if __name__ == "__main__":
    main()
