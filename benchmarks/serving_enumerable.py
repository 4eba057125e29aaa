"""Compares the serving search with exhaustive enumeration on random requests of up to 32 devices.

Run from the root of the repository: python -m benchmarks.serving_enumerable [first seed] [number of seeds] [objectives]
Dense and mixture-of-experts models, one or two kinds of devices, workers that do both and pools, each objective, each at a
confidence drawn with it. Every layout,
batch limit and number of replicas is simulated, by shorter simulations than a plan's, and fewer batch limits: the search is
what is tested. Degrees of each plan must divide the model as the engine wants it.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from dataclasses import replace

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.units import DType
from meshwright.solver.answer.layouts import Pools, Replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.stage import Axes
from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.problem.choices import Objective, ServingMode
from meshwright.solver.problem.request import ServingRequest, ServingWorkload, Slo
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import FixedLength, PoissonArrivals
from meshwright.solver.serving import plan_serving
from meshwright.solver.serving.forms.pools import pools
from meshwright.solver.serving.promise import evaluation, question
from meshwright.solver.serving.workers import simulation
from meshwright.solver.verify.check import check
from tests.unit.solver.serving.enumeration import best_objective, described, roomiest

MODELS = ("llama-3.1-8b", "qwen3-32b", "qwen3-30b-a3b", "gpt-oss-20b", "llama-3.1-70b")
OBJECTIVES = (Objective.DEVICES, Objective.COST, Objective.THROUGHPUT)
PRICES = {"dgx-h100": 2.5, "dgx-h200": 3.2, "dgx-b200": 5.0, "dgx-a100-80gb": 1.6}
CONFIDENCES = (0.5, 0.75, 0.9, 0.97)
TOLERANCE = 1e-9

FEWER_LAYOUTS = 93
"""Seed from which pools lie on up to 32 devices, without pipelines, split caches and attention groups."""


def main(first: int = 0, count: int = 40, *, objectives: tuple[Objective, ...] = OBJECTIVES) -> int:
    """Prints how many requests agree, by kind; 1 if one does not."""
    shorten_simulations()
    kinds: Counter[str] = Counter()
    wrong, began_s = 0, time.process_time()
    for seed in range(first, first + count):
        request = random_request(seed, objectives=objectives)
        plan = plan_serving(request, stop=never_stop, progress=ignore_progress)
        found = plan.certificate.objective
        best = best_objective(request, found=found)
        agrees = found == best or (found is not None and best is not None and abs(found - best) <= TOLERANCE * best)
        if not agrees or not _is_roomiest(plan, request) or check(plan, request) or not _divides(plan, request):
            wrong += 1
            print(f"wrong: seed {seed}, found {found}, best {best}", flush=True)
        kinds[_kind(plan, request)] += 1
    print(f"{count - wrong} of {count} agree with enumeration, {time.process_time() - began_s:.0f} CPU s")
    for kind, number in sorted(kinds.items()):
        print(f"  {number:5} {kind}")
    return 1 if wrong else 0


def _is_roomiest(plan: Plan, request: ServingRequest) -> bool:
    """Return True if a plan leaves most room of all that are as good; of pools that sustain the same rate any will do."""
    if not plan.feasible or (isinstance(plan.layout, Pools) and request.objective is Objective.THROUGHPUT):
        return True
    return described(plan) == roomiest(request, plan)


def shorten_simulations() -> None:
    """Short runs and few batch limits, one beyond the ordinary one, for search and enumeration alike; runs of 1,000 are too
    short for finite intervals."""
    for module in (evaluation, pools, simulation):
        vars(module)["REQUESTS"] = 3000
    for module in (evaluation, pools):
        vars(module)["SCREENING_REQUESTS"] = 600
    vars(evaluation).update(STEP_TOKENS=(1024, 8192), SEQUENCES=(8, 32, 128))
    for module in (question, pools):
        vars(module)["ORDINARY_SEQUENCES"] = 32


def random_request(seed: int, *, objectives: tuple[Objective, ...] = OBJECTIVES) -> ServingRequest:
    """A request of 4 to 32 devices; with pools, as enumeration takes the square of their layouts, up to 8 of a kind, and from
    seed FEWER_LAYOUTS on up to 32 with fewer layouts."""
    draw = random.Random(seed)
    replicas, pools_of_two = ServingMode.AGGREGATED, ServingMode.DISAGGREGATED
    modes = ((replicas,), (pools_of_two,), (replicas, pools_of_two))[seed % 3]
    objective = objectives[seed // 3 % len(objectives)]
    pooled, fewer = ServingMode.DISAGGREGATED in modes, seed >= FEWER_LAYOUTS
    prompt, output = draw.choice((200, 1000, 4000)), draw.choice((50, 200, 500))
    confidence = random.Random(f"confidence {seed}").choice(CONFIDENCES)
    return ServingRequest(
        model=model(draw.choice(MODELS)),
        cluster=Cluster(tuple(_groups(draw, most=8 if pooled and not fewer else 32))),
        workload=ServingWorkload(
            kind="serving",
            arrivals=PoissonArrivals(process="poisson", requests_per_s=draw.choice((0.5, 2.0, 8.0, 30.0)) * 1000 / prompt),
            prompt_tokens=FixedLength(prompt),
            output_tokens=FixedLength(output),
            precision=DType.BF16,
        ),
        slo=Slo(
            p95_ttft_ms=draw.choice((200.0, 500.0, 2000.0)),
            p95_tpot_ms=draw.choice((8.0, 20.0, 50.0)),
            confidence=confidence,
        ),
        objective=objective,
        search=_space(modes, seed),
    )


def _space(modes: tuple[ServingMode, ...], seed: int) -> Search:
    pooled = ServingMode.DISAGGREGATED in modes
    if pooled and seed >= FEWER_LAYOUTS:
        return Search(modes=modes, pp=(1,), kvp=(1,), attention_dp=(1,), seed=seed)
    return Search(modes=modes, pp=(1, 2, 4) if pooled else (), seed=seed)


def _groups(draw: random.Random, *, most: int) -> list[NodeGroup]:
    """One or two kinds of devices, ``most`` of a kind or, where that is 32, of all."""
    names = draw.sample(sorted(PRICES), draw.choice((1, 1, 2)))
    most = most if most < 32 else most // len(names)
    found = []
    for name in names:
        node = node_type(name)
        per_node = draw.choice((4, 8))
        device = replace(node.device, price_per_hour=PRICES[name])
        nodes = draw.choice([n for n in (1, 2, 4) if n * per_node <= most])
        found.append(NodeGroup(name, replace(node, device=device, devices_per_node=per_node), nodes))
    return found


def _divides(plan: Plan, request: ServingRequest) -> bool:
    """Return True if heads, key/value heads (split or copied), experts and feed-forward columns divide by the plan's
    degrees."""
    dims = request.model.dims
    for degrees in _degrees(plan):
        kv = dims.get("kv_heads", degrees.tp)
        if dims["heads"] % degrees.tp or (kv % degrees.tp and degrees.tp % kv):
            return False
        if dims.get("experts", degrees.ep) % degrees.ep:
            return False
    return True


def _degrees(plan: Plan) -> list[Axes]:
    return [workers.axes for workers in plan.layout.all_workers] if isinstance(plan.layout, Replicas | Pools) else []


def _kind(plan: Plan, request: ServingRequest) -> str:
    answer = "no plan" if not plan.feasible else "pools" if isinstance(plan.layout, Pools) else "replicas"
    groups = " on two kinds of devices" if len(request.cluster.groups) > 1 else ""
    return f"{request.objective.value}: {answer}{groups}"


if __name__ == "__main__":
    numbers = [int(given) for given in sys.argv[1:] if given.isdecimal()]
    named = tuple(Objective(given) for given in sys.argv[1:] if not given.isdecimal())
    sys.exit(main(*numbers, objectives=named or OBJECTIVES))
