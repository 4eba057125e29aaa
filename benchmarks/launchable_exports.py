"""Random requests of a launcher's own space, planned and exported: a plan that is called launchable is never refused.

    python -m benchmarks.launchable_exports [--launcher NAME ...] [--count N] [--first N] [--seconds S] [--seed S]

Plans are those that the search of a request shows on its way, and its answer, each of another layout; the search tries few
candidates, so they are not the best ones. A request draws its model (also tied, with experts, windows or latent attention), one
node group or two (1 to 4 nodes, of pools 2 to 8, of 1 to 8 devices), batch, length, formats, and restrictions of up to three
choices of its search; adapters and documents where the launcher has them. To train, it is also searched for random meshes of
its space alone, under a random ZeRO stage. Requests without a plan are drawn anew. Drafts have a checkpoint where they need
one. Exports are neither started nor read by the launcher's parser.

Prints a row a launcher: plans, requests, how many plans are of several nodes, with idle devices, or of
pools, and refusals. Each refusal stands below with the number of its request. Exits with 1 where there is one.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from meshwright.app.base.solving import SearchLimits
from meshwright.app.launching.exporters import LAUNCHERS, export
from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, part_of_node
from meshwright.costmodels.errors import ExportError, InvalidInputError
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.model.adapter import Adapter, BaseFormat
from meshwright.costmodels.model.documents import DocumentLengths, Fill
from meshwright.costmodels.model.formats import MatmulRecipe, SavedFormat, WeightFormat
from meshwright.costmodels.serving.speculation import Draft, DraftMethod, Speculation
from meshwright.costmodels.units import DType
from meshwright.solver.answer.layouts import Pools
from meshwright.solver.answer.pipeline_plan import placement_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import Progress
from meshwright.solver.problem.choices import GroupOrder, Launcher, Objective, Recompute, ServingMode, TpOverlap
from meshwright.solver.problem.declared.expert_overlap import ExpertOverlap
from meshwright.solver.problem.launchers.decoders import unlike
from meshwright.solver.problem.launchers.servers import ServingForm
from meshwright.solver.problem.launchers.table import SERVERS, TRAINERS
from meshwright.solver.problem.launchers.trainers import Trainer
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
from meshwright.solver.serving.planning import plan_serving
from meshwright.solver.training.planner import plan_training
from meshwright.solver.training.space.meshes import meshes
from meshwright.solver.verify.check import check

MODELS = (
    *("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "tinyllama-1.1b", "qwen2.5-0.5b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-8b"),
    *("gpt2-xl", "pythia-1b", "mpt-7b", "phi-3-mini", "gemma-2-9b", "gemma-3-1b", "mistral-7b", "glm-4-9b", "granite-3-2b"),
    *("mixtral-8x7b", "qwen3-30b-a3b", "olmoe-1b-7b", "deepseek-v2-lite", "gpt-oss-20b"),
)
NODES = ("dgx-h100", "dgx-h200", "dgx-a100-80gb")
CANDIDATES = 4
"""So many candidates of each search: plans need not be the best ones here."""
TIME_LIMIT_S = 0.4
"""Of each search, after which the best plan so far is taken."""
MESHES, MOST_MESHES = 5, 5000
"""Meshes of a request to train that are searched by themselves, and those of its space that they are drawn from."""


@dataclass(slots=True)
class Tally:
    """Plans of a launcher, those of some kinds, and refusals by their words."""

    plans: int = 0
    requests: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)


def training_request(launcher: Launcher, draw: random.Random) -> TrainingRequest:
    """A random request to train."""
    rules = TRAINERS[launcher]
    cluster = _cluster(draw, nodes=draw.choice((1, 1, 2, 3, 4)))
    adapter = None
    if rules.adapters and draw.random() < 0.3:
        adapter = Adapter(draw.choice((8, 64)), base_format=draw.choice((BaseFormat.WORKING, BaseFormat.NF4)))
    restricted = {
        "tp": ((1,), (2,), (4, 8)),
        "pp": ((2,), (3, 4)),
        "cp": ((2,), (2, 4)) if rules.context_parallel or rules.head_exchange else ((1,),),
        "ep": ((2, 4),) if rules.expert_parallel else ((1,),),
        "etp": ((1,),) if rules.expert_parallel else ((),),
        "ulysses": ((1,), (2,)) if rules.head_exchange else ((1,),),
        "microbatch": ((1,), (2,), (4,)),
        "zero_stages": ((0,), (1,), (2,), (3,)),
        "shard_ranks": ((2, 4),),
        "recompute": ((Recompute.NONE,), (Recompute.FULL,), tuple(Recompute)),
        "recompute_layers": ((1, 2),),
        "optimizers": (tuple(sorted(rules.optimizers)),),
        "offload_optimizer": ((0.0, 1.0), (0.0, 0.5), (1.0,)),
        "offload_weights": ((1.0,),),
        "offload_gradients": ((1.0,),),
        "tp_overlap": (tuple(TpOverlap),),
        "expert_overlap": (tuple(ExpertOverlap),),
        "schedules": tuple((each,) for each in sorted(rules.schedules)) or ((),),
        "virtual_stages": ((2,),),
        "group_order": (GroupOrder.ANY,),
        "idle_groups": (("a",), tuple(group.name for group in cluster.groups)),
    }
    chosen = set(draw.sample(sorted(restricted), draw.choice((0, 1, 2, 3))))
    chosen |= {"idle_groups"} if len(cluster.groups) > 1 and draw.random() < 0.5 else set()
    search = Search(
        launcher=launcher,
        max_candidates=CANDIDATES,
        time_limit_s=TIME_LIMIT_S,
        **{name: draw.choice(restricted[name]) for name in sorted(chosen)},
    )
    precision = draw.choice([DType.BF16] * 6 + [DType.FP16] * rules.fp16 + [DType.FP32] * rules.fp32)
    in_16_bits = precision is not DType.FP32 and adapter is None
    workload = TrainingWorkload(
        "training",
        global_batch=draw.choice((12, 16, 24, 64, 96)),
        seq_len=draw.choice((512, 1024, 4096, 4096, 32768)),
        precision=precision,
        optimizer=Optimizer.ADAMW if adapter else draw.choice(sorted(rules.optimizers)),
        gradient_dtype=draw.choice((DType.FP32, DType.FP32, DType.BF16)),
        matmul=draw.choice((*[MatmulRecipe.WORKING] * 8, *MatmulRecipe)) if in_16_bits else MatmulRecipe.WORKING,
        saved_activations=draw.choice((SavedFormat.WORKING, *SavedFormat)) if in_16_bits else SavedFormat.WORKING,
        adapter=adapter,
        lengths=_lengths(rules, draw),
    )
    # This one chooses a part of one node group, and leaves no devices idle.
    parts = len(cluster.groups) == 1 and not search.idle_groups and draw.random() < 0.3
    objective = Objective.DEVICES if parts else Objective.THROUGHPUT
    slo = Slo(max_step_time_s=draw.choice((None, 5.0, 20.0)))
    return TrainingRequest(model(_trainable(rules, draw)), cluster, workload, slo=slo, objective=objective, search=search)


def _trainable(rules: Trainer, draw: random.Random) -> str:
    """A model that the launcher has the layers of."""
    while rules.layers is not None and unlike(model(name := draw.choice(MODELS)), rules.layers):
        pass
    return draw.choice(MODELS) if rules.layers is None else name


def _lengths(rules: Trainer, draw: random.Random) -> DocumentLengths | None:
    if not rules.masks_documents or draw.random() < 0.7:
        return None
    return DocumentLengths((100, 400), (3, 1), draw.choice(tuple(Fill)) if rules.fills_sequences else Fill.PACKED)


def serving_request(launcher: Launcher, draw: random.Random) -> ServingRequest:
    """A random request to serve, of every form that the launcher starts; half of those with pools are of pools."""
    server = SERVERS[launcher]
    pools = ServingForm.POOLS in server.forms and draw.random() < 0.5
    precision = draw.choice((DType.BF16, DType.BF16, DType.FP8))
    quantised = draw.choice((None, None, WeightFormat.INT4)) if precision is DType.BF16 else None
    workload = ServingWorkload(
        "serving",
        arrivals=PoissonArrivals("poisson", draw.choice((0.5, 2.0, 8.0))),
        prompt_tokens=FixedLength(draw.choice((256, 1024, 8192))),
        output_tokens=FixedLength(draw.choice((64, 256))),
        precision=precision,
        kv_dtype=draw.choice((None, None, DType.FP8)),
        prefix_hit_ratio=draw.choice((0.0, 0.0, 0.5)),
        weights=quantised,
        speculation=draw.choice((None, None, None, _speculation(draw))),
    )
    restricted = {
        "tp": ((1, 2), (2, 4), (1, 8)),
        "pp": ((1,), (1, 2), (2, 4), (2,)),
        "cp": ((1, 2), (2,)),
        "ep": ((2, 4),),
        "attention_dp": ((1, 2), (2, 4)),
        "kvp": ((1, 2), (2,)),
    }
    chosen = draw.sample(sorted(restricted), draw.choice((0, 1, 1, 2)))
    search = Search(
        launcher=launcher,
        engine=server.engine,
        modes=(ServingMode.DISAGGREGATED if pools else ServingMode.AGGREGATED,),
        worker_kinds=2 if ServingForm.KINDS in server.forms and not pools and draw.random() < 0.3 else 1,
        memory_share=draw.choice((None, None, 0.5)),
        max_candidates=draw.choice((CANDIDATES, 4 * CANDIDATES)),
        time_limit_s=TIME_LIMIT_S,
        **{name: draw.choice(restricted[name]) for name in chosen},
    )
    slo = Slo(p95_ttft_ms=draw.choice((500.0, 2000.0, 8000.0)), p95_tpot_ms=draw.choice((15.0, 25.0, 60.0)))
    objective = draw.choice((Objective.DEVICES, Objective.THROUGHPUT, Objective.COST))
    cluster = _cluster(draw, nodes=draw.choice((2, 3, 4, 8)) if pools else draw.choice((1, 1, 2)))
    return ServingRequest(model(draw.choice(MODELS)), cluster, workload, slo=slo, objective=objective, search=search)


def _speculation(draw: random.Random) -> Speculation:
    method = draw.choice(tuple(DraftMethod))
    checkpoint = "org/draft" if method in (DraftMethod.EAGLE, DraftMethod.EAGLE3, DraftMethod.DRAFT_MODEL) else None
    return Speculation(draw.choice((1, 3)), 0.7, Draft(method, 0.05, 1e9, checkpoint))


def _cluster(draw: random.Random, *, nodes: int) -> Cluster:
    """So many nodes, in one group or two, with parts of their devices or all."""
    of_groups = (nodes,) if nodes == 1 or draw.random() < 0.5 else (nodes - nodes // 2, nodes // 2)
    devices = [draw.choice((1, 2, 3, 4, 6, 8, 8)) for _ in of_groups]
    devices = devices[:1] * len(devices) if draw.random() < 0.7 else devices
    parts = [part_of_node(node_type(draw.choice(NODES)), count) for count in devices]
    return Cluster(tuple(NodeGroup("ab"[i], part, count) for i, (part, count) in enumerate(zip(parts, of_groups, strict=True))))


def on_meshes(asked: PlanRequest, draw: random.Random) -> Iterator[PlanRequest]:
    """A request, and where it is to train those for some random meshes of its space alone, which take less time to search."""
    yield asked
    if not isinstance(asked, TrainingRequest):
        return
    of_space = list(itertools.islice(meshes(asked), MOST_MESHES))
    for mesh in draw.sample(of_space, min(MESHES, len(of_space))):
        degrees = {name: (getattr(mesh, name),) for name in ("tp", "pp", "cp", "ep", "ulysses")}
        zero = asked.search.zero_stages or (draw.randint(0, 3),)
        yield replace(asked, search=replace(asked.search, **degrees, zero_stages=zero))


def plans_of(asked: PlanRequest) -> list[Plan]:
    """The plans that the search of a request shows on its way and that the checker lets pass, and its answer if it is one; none
    of a request that can't be planned."""
    shown: list[Plan] = []

    def keep(progress: Progress) -> None:
        if progress.incumbent is not None and (plan := progress.incumbent()) and plan.feasible:
            shown.append(plan)

    stop = SearchLimits.of(asked)
    # Not `solve`: where there is no plan it looks for changes of the request that have one.
    try:
        if isinstance(asked, TrainingRequest):
            answer = plan_training(asked, stop=stop, progress=keep)
        else:
            answer = plan_serving(asked, stop=stop, progress=keep)
    except InvalidInputError:
        return []
    different = {repr(plan.layout): plan for plan in shown if not check(plan, asked)}
    if answer.feasible:
        different[repr(answer.layout)] = answer
    return list(different.values())


def kinds_of(plan: Plan, request: PlanRequest) -> set[str]:
    """The kinds that a plan is counted in."""
    if isinstance(request, ServingRequest):
        return {"pools"} if isinstance(plan.layout, Pools) else set()
    found = {"several nodes"} if sum(group.nodes for group in request.cluster.groups) > 1 else set()
    return found | ({"idle devices"} if placement_of(plan).idle_devices else set())


def tried(launcher: Launcher, *, count: int, seed: int, until_s: float) -> Tally:
    """So many plans of a launcher's space, fewer where time ends first, each exported."""
    tally = Tally()
    for number in itertools.count():
        if tally.plans >= count or time.monotonic() > until_s:
            return tally
        draw = random.Random(f"{seed} {launcher.value} {number}")
        try:
            asked = (training_request if launcher in TRAINERS else serving_request)(launcher, draw)
            plans = [(plan, each) for each in on_meshes(asked, draw) for plan in plans_of(each)]
        except InvalidInputError:
            continue
        tally.requests += bool(plans)
        different = {repr(plan.layout): (plan, each) for plan, each in plans}
        for plan, each in different.values():
            tally.plans += 1
            tally.kinds.update(kinds_of(plan, each))
            try:
                export(plan, each, launcher.value)
            except ExportError as error:
                tally.refused[f"{number}: {str(error)[:300]}"] += 1
    raise AssertionError("numbers have no end")


def main(words: Sequence[str] | None = None) -> int:
    """Print a row a launcher; 1 where a plan was refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launcher", action="append", choices=LAUNCHERS, help="one of them; all where none is named")
    parser.add_argument("--count", type=int, default=300, help="plans of each")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of each launcher, after which it ends")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(words)
    any_refused = False
    for name in asked.launcher or LAUNCHERS:
        tally = tried(Launcher(name), count=asked.count, seed=asked.seed, until_s=time.monotonic() + asked.seconds)
        any_refused |= bool(tally.refused)
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(tally.kinds.items()))
        print(f"| `{name}` | {tally.plans} | {tally.requests} | {kinds} | {tally.refused.total()} |", flush=True)
        for why, times in tally.refused.most_common():
            print(f"  {times} x {why}", flush=True)
    return int(any_refused)


if __name__ == "__main__":
    sys.exit(main())
