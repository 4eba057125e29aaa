"""Random requests of a launcher's own space, planned and exported: a plan that is called launchable is never refused.

    python -m benchmarks.launchable_exports [--launcher NAME ...] [--count N] [--seed S]

Prints a row a launcher for docs/exporters.md, plans and refusals, and each refusal by its words. Exits with 1 where there is
one.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence

from meshwright.app.base.solving import solve_here
from meshwright.app.launching.exporters import LAUNCHERS, export
from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, part_of_node
from meshwright.costmodels.errors import ExportError, MeshwrightError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.units import DType
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress
from meshwright.solver.problem.choices import Launcher, Objective, Recompute, ServingMode
from meshwright.solver.problem.launchers.servers import ServingForm
from meshwright.solver.problem.launchers.table import SERVERS, TRAINERS
from meshwright.solver.problem.request import (
    PlanRequest,
    ServingRequest,
    ServingWorkload,
    Slo,
    TrainingRequest,
    TrainingWorkload,
)
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import FixedLength, PoissonArrivals

MODELS = (
    *("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "qwen2.5-1.5b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-8b", "gpt2-xl"),
    *("phi-3-mini", "gemma-2-9b", "mixtral-8x7b", "qwen3-30b-a3b", "mistral-7b"),
)
NODES = ("dgx-h100", "dgx-h200", "dgx-a100-80gb")
CANDIDATES = 30
"""So many candidates of each search: plans need not be the best ones here."""
TIME_LIMIT_S = 5.0
"""Of each search, after which the best plan so far is taken."""
TRIES = 20
"""Requests that are drawn for each plan: many do not fit, or are of models that a launcher does not train."""


def training_request(launcher: Launcher, draw: random.Random) -> TrainingRequest:
    """A random request to train."""
    rules = TRAINERS[launcher]
    workload = TrainingWorkload(
        "training",
        global_batch=draw.choice((16, 24, 64, 96)),
        seq_len=draw.choice((512, 1024, 4096)),
        precision=draw.choice((DType.BF16, DType.BF16, DType.FP16, DType.FP32)),
        optimizer=draw.choice(sorted(rules.optimizers)),
    )
    search = Search(
        launcher=launcher,
        zero_stages=draw.choice(((), (0,), (1,), (2,), (3,))),
        pp=draw.choice(((), (), (2,), (4,))),
        recompute=draw.choice(((), (Recompute.FULL,))),
        offload_optimizer=draw.choice(((), (), (0.0, 1.0))),
        max_candidates=CANDIDATES,
        time_limit_s=TIME_LIMIT_S,
    )
    return TrainingRequest(model(draw.choice(MODELS)), _cluster(draw), workload, search=search)


def serving_request(launcher: Launcher, draw: random.Random) -> ServingRequest:
    """A random request to serve, of every form that the launcher starts."""
    server = SERVERS[launcher]
    modes = {ServingMode.AGGREGATED: ServingForm.REPLICAS, ServingMode.DISAGGREGATED: ServingForm.POOLS}
    able = [mode for mode, form in modes.items() if form in server.forms]
    workload = ServingWorkload(
        "serving",
        arrivals=PoissonArrivals("poisson", draw.choice((1.0, 4.0, 16.0))),
        prompt_tokens=FixedLength(draw.choice((256, 1024, 4096))),
        output_tokens=FixedLength(draw.choice((64, 256))),
    )
    search = Search(
        launcher=launcher,
        engine=server.engine,
        modes=(draw.choice(able),),
        tp=draw.choice(((), (), (1, 2), (2, 4))),
        pp=draw.choice(((), (1,), (1, 2))),
        max_candidates=CANDIDATES,
        time_limit_s=TIME_LIMIT_S,
    )
    slo = Slo(p95_ttft_ms=draw.choice((500.0, 2000.0)), p95_tpot_ms=draw.choice((25.0, 60.0)))
    objective = draw.choice((Objective.DEVICES, Objective.THROUGHPUT))
    return ServingRequest(model(draw.choice(MODELS)), _cluster(draw), workload, slo=slo, objective=objective, search=search)


def _cluster(draw: random.Random) -> Cluster:
    node, devices, nodes = node_type(draw.choice(NODES)), draw.choice((1, 2, 4, 8)), draw.choice((1, 1, 2))
    return Cluster((NodeGroup("a", part_of_node(node, devices) if devices < node.devices_per_node else node, nodes),))


def planned(request: Callable[[], PlanRequest]) -> tuple[Plan, PlanRequest] | None:
    """The plan of the first of some requests that has one; None where none has."""
    for _ in range(TRIES):
        try:
            asked = request()
            plan = solve_here(asked, ignore_progress)
        except MeshwrightError:
            continue
        if plan.feasible:
            return plan, asked
    return None


def refusals(launcher: Launcher, *, count: int, seed: int) -> tuple[int, Counter[str]]:
    """Plans of a launcher's space, and how often their export was refused, by its words."""
    draw = random.Random(f"{seed} {launcher.value}")
    made, refused = 0, Counter[str]()
    for _ in range(count):
        found = planned(lambda: (training_request if launcher in TRAINERS else serving_request)(launcher, draw))
        if found is None:
            continue
        made += 1
        try:
            export(*found, launcher.value)
        except ExportError as error:
            refused[str(error)[:200]] += 1
    return made, refused


def main(words: Sequence[str] | None = None) -> int:
    """Print a row a launcher; 1 where a plan was refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launcher", action="append", choices=LAUNCHERS, help="one of them; all where none is named")
    parser.add_argument("--count", type=int, default=40, help="plans of each")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(words)
    any_refused = False
    for name in asked.launcher or LAUNCHERS:
        made, refused = refusals(Launcher(name), count=asked.count, seed=asked.seed)
        any_refused |= bool(refused)
        print(f"| `{name}` | {made} | {refused.total()} |", flush=True)
        for why, times in refused.most_common():
            print(f"  {times} x {why}", flush=True)
    return int(any_refused)


if __name__ == "__main__":
    sys.exit(main())
