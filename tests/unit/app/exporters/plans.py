"""Plans to export: real models, layouts as wished, figures made up (no launcher reads them)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshwright.app.launching.exporters import Export
from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, Device, Link, NodeGroup, NodeType
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.units import DType
from meshwright.solver.answer.document import plan_of
from meshwright.solver.answer.layouts import EngineLoad, Replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.plan_record import PlanRecord
from meshwright.solver.answer.predicted import Certificate, Predicted, SearchStats, Status, TimeBreakdown
from meshwright.solver.answer.stage import Axes, DeviceRange, LayerSpan, Microbatch, OperatorSharding, Stage, StageMemory
from meshwright.solver.problem.choices import Launcher, Recompute, TpOverlap
from meshwright.solver.problem.declared.rank_order import RankOrder
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import PlanRequest, ServingRequest, ServingWorkload, TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import FixedLength, PoissonArrivals
from tests.support.flat_plans import flat, with_fields

GLOBAL_BATCH = 64
MEMORY = StageMemory(30e9, 10e9, 10e9, 15e9, 4e9, 1e9, 80e9)


def cluster(nodes: int, devices_per_node: int = 8) -> Cluster:
    device = Device("h100", 80 * 10**9, dict.fromkeys((DType.BF16, DType.FP16, DType.FP32, DType.FP8), 1e15), 3e12, "h100_sxm")
    node = NodeType("node", device, devices_per_node, Link("nvlink", 4e11, 1e-6), Link("ib", 4e11, 5e-6))
    return Cluster((NodeGroup("a", node, nodes),))


def training(
    name: str = "llama-3.1-8b",
    *,
    dp: int = 1,
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    layers: Sequence[int] | None = None,
    microbatch: int = 1,
    zero_stage: int = 0,
    sequence_parallel: bool = False,
    tp_overlap: TpOverlap = TpOverlap.EXPOSED,
    rank_order: RankOrder = RankOrder.PP_OUTERMOST,
    recompute: Sequence[Recompute] = (Recompute.NONE,),
    devices_per_node: int = 8,
    graph: ModelGraph | None = None,
    **workload: object,
) -> tuple[Plan, PlanRequest]:
    """A training plan and its request. ``layers`` gives each stage its number of decoder layers."""
    graph = graph or model(name)
    n_devices = dp * tp * pp * cp
    axes = Axes(dp=dp, tp=tp, pp=pp, cp=cp)
    decoder = len(graph.layers) - 2
    stages = _stages(graph, layers or _even(decoder, pp), axes, zero_stage, recompute)
    if rank_order is RankOrder.DP_OUTERMOST:
        runs = [tuple(DeviceRange((replica * pp + i) * tp * cp, tp * cp) for replica in range(dp)) for i in range(pp)]
        stages = tuple(replace(stage, devices=devices) for stage, devices in zip(stages, runs, strict=True))
    plan = plan_of(
        PlanRecord(
            kind="training",
            feasible=True,
            certificate=Certificate(Status.FEASIBLE, 1.0, None, None, "s", "made up"),
            devices=n_devices,
            search=SearchStats(1, 1, 0.0),
            calibration=(),
            model=graph.name,
            predicted=Predicted(tokens_per_s=1.0, peak_memory_bytes=1.0, step_time_s=1.0, mfu=0.5),
            axes=axes,
            stages=stages,
            shardings=_shardings(graph, tp, sequence_parallel),
            sequence_parallel=sequence_parallel,
            tp_overlap=tp_overlap,
            rank_order=rank_order,
            schedule="1f1b",
            microbatch=Microbatch(microbatch, GLOBAL_BATCH // (dp * microbatch)),
            breakdown=TimeBreakdown(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        )
    )
    fields: dict[str, object] = {"global_batch": GLOBAL_BATCH, "seq_len": 8192} | workload
    nodes = max(1, -(-n_devices // devices_per_node))
    request = TrainingRequest(graph, cluster(nodes, devices_per_node), TrainingWorkload("training", **fields))  # type: ignore[arg-type]
    return plan, request


def interleaved(plan: Plan, parts: Sequence[Sequence[int]], *, schedule: str = "interleaved-1f1b") -> Plan:
    """The plan with these layers (of the model, embedding and head counted) in model chunks: ``parts[i]`` on rank i."""
    names = [span.block for stage in flat(plan).stages for span in stage.blocks for _ in range(span.count)]
    stages, first = [], 0
    starts: dict[tuple[int, int], int] = {}
    ranks = range(len(parts))
    order = [(rank, chunk) for chunk in range(len(parts[0])) for rank in ranks]
    if schedule in ("zb-v", "dualpipe-v"):
        order = [(rank, 0) for rank in ranks] + [(rank, 1) for rank in reversed(ranks)]
    for rank, chunk in order:
        starts[rank, chunk] = first
        first += parts[rank][chunk]
    for rank, stage in enumerate(flat(plan).stages):
        layers = [starts[rank, chunk] + i for chunk, count in enumerate(parts[rank]) for i in range(count)]
        blocks = tuple(LayerSpan(names[layer], layer, 1) for layer in layers)
        stages.append(replace(stage, blocks=blocks, chunk_layers=tuple(parts[rank])))
    return with_fields(plan, stages=tuple(stages), schedule=schedule)


def serving(
    name: str = "llama-3.1-70b",
    *,
    replicas: int = 1,
    tp: int = 8,
    pp: int = 1,
    layers: Sequence[int] | None = None,
    nodes: int = 2,
    engine: ServingEngine = ServingEngine.VLLM,
    attention_dp: int = 1,
    ep: int = 1,
    **workload: object,
) -> tuple[Plan, PlanRequest]:
    """A serving plan and its request."""
    graph = model(name)
    axes = Axes(tp=tp, pp=pp, attention_dp=attention_dp, ep=ep)
    memory = replace(MEMORY, gradients_bytes=0.0, optimizer_bytes=0.0, kv_cache_bytes=20e9)
    stages = _stages(graph, layers or _even(len(graph.layers) - 2, pp), axes, 0, (Recompute.NONE,))
    plan = Plan(
        kind="serving",
        feasible=True,
        certificate=Certificate(Status.FEASIBLE, float(replicas * tp * pp * attention_dp), None, None, "devices", "made up"),
        devices=replicas * tp * pp * attention_dp,
        search=SearchStats(1, 1, 0.0),
        calibration=(),
        model=graph.name,
        predicted=Predicted(tokens_per_s=1.0, peak_memory_bytes=1.0, ttft_p95_s=0.5, tpot_p95_s=0.02),
    )
    stages = tuple(replace(stage, memory=memory) for stage in stages)
    plan = replace(plan, layout=Replicas(axes, stages, EngineLoad(replicas, 64, 8192, 0.5, 0.3, 0.02, 10.0)))
    fields: dict[str, object] = {
        "arrivals": PoissonArrivals("poisson", 4.0),
        "prompt_tokens": FixedLength(4000),
        "output_tokens": FixedLength(500),
    } | workload
    request = ServingRequest(
        graph,
        cluster(nodes),
        ServingWorkload("serving", **fields),
        search=Search(launcher=Launcher.VLLM, engine=engine),  # type: ignore[arg-type]
    )
    return plan, request


def arguments(export: Export) -> list[str]:
    """The words of a command, line continuations, environment and launcher included."""
    return shlex.split(export.command.replace("\\\n", " "))


def flags(export: Export) -> Mapping[str, tuple[str, ...]]:
    """Values of each --flag of a command."""
    found: dict[str, tuple[str, ...]] = {}
    current = None
    for word in arguments(export):
        if re.match(r"--[a-z]", word):
            assert word not in found, f"{word} is given twice"
            current = word
            found[word] = ()
        elif word == "-m" or word.endswith(".py"):
            current = None
        elif current is not None:
            found[current] = (*found[current], word)
    return found


def _even(n_layers: int, n_stages: int) -> list[int]:
    assert n_layers % n_stages == 0, "give the layers of uneven stages"
    return [n_layers // n_stages] * n_stages


def _stages(
    graph: ModelGraph, layers: Sequence[int], axes: Axes, zero_stage: int, recompute: Sequence[Recompute]
) -> tuple[Stage, ...]:
    stages, first = [], 1
    size = axes.dp * axes.tp * axes.cp * axes.attention_dp
    for index, count in enumerate(layers):
        blocks: list[LayerSpan] = [LayerSpan("embedding", 0, 1)] if index == 0 else []
        for layer in range(first, first + count):
            name = graph.layers[layer]
            if blocks and blocks[-1].block == name:
                blocks[-1] = replace(blocks[-1], count=blocks[-1].count + 1)
            else:
                blocks.append(LayerSpan(name, layer, 1))
        first += count
        if index == len(layers) - 1:
            blocks.append(LayerSpan("head", first, 1))
        stages.append(
            Stage(
                blocks=tuple(blocks),
                devices=(DeviceRange(index * size, size),),
                axes=axes,
                recompute=recompute[index % len(recompute)],
                zero_stage=zero_stage,
                time_s=1.0,
                extra_s=0.0,
                in_flight=1,
                memory=MEMORY,
            )
        )
    return tuple(stages)


def _shardings(graph: ModelGraph, tp: int, sequence_parallel: bool) -> tuple[OperatorSharding, ...]:
    found = []
    for block in graph.blocks:
        for operator in block.operators:
            dims = [dim for dim in ("heads", "ffn", "vocab", "kv_heads") if dim in operator.dims]
            vector = operator.kind.value in ("norm", "elementwise")
            strategy = dims[0] if dims else "seq" if sequence_parallel and vector else "replicate"
            found.append(OperatorSharding(block.name, operator.name, strategy if tp > 1 else "replicate"))
    return tuple(found)
