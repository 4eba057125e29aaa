"""A model small enough to count by hand, requests for it, and plans whose every figure was worked out on paper.

Model: hidden 8, heads 4, kv_heads 2, head_dim 2, ffn 16, vocab 32; embedding, four layers, head. Sequences of 16 tokens.

Parameters of a layer: norm 8, qkv 64 + 32 + 32, o 64, up 128, down 128. On one of two tp ranks: 8 + 64 + 32 + 64 + 64 = 232.
The vocabulary has 256 parameters at each end, 128 on a rank.

Bytes a layer saves for one sequence on one of two tp ranks, sequence parallel, bf16: x 128, n 128, q 128, k 64, v 64,
ctx 128, s 128, u 256, g 256: 1280 together. The head saves x 128 and the softmax of
256 logits in fp32, 1024; beside it live the logits, 512.

Forward FLOPs of a sequence: layer 2 x 16 x 448 + 136 x 8 x 4 + 16 x 8 x 4 + 2 x 16 x 8 + 16 x 16 = 19712; head
2 x 16 x 256 + 5 x 16 x 32 = 10752; model 4 x 19712 + 10752 = 89600.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.costmodels.cluster.cluster import Cluster, Device, Link, NodeGroup, NodeType
from meshwright.costmodels.model.memory_law import MemoryLaw
from meshwright.costmodels.model.operators import AttentionMask, Operator, OperatorKind, Tensor, Weight
from meshwright.costmodels.units import DType
from meshwright.solver.answer.document import plan_of
from meshwright.solver.answer.layouts import EngineLoad, Replicas
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.plan_record import PlanRecord
from meshwright.solver.answer.predicted import Certificate, Predicted, Reason, SearchStats, Status, TimeBreakdown
from meshwright.solver.answer.stage import Axes, DeviceRange, LayerSpan, Microbatch, OperatorSharding, Stage, StageMemory
from meshwright.solver.problem.choices import Launcher, Recompute
from meshwright.solver.problem.graph import Block, BlockRun, ModelGraph
from meshwright.solver.problem.implementation import StatedImplementation
from meshwright.solver.problem.request import PlanRequest, ServingRequest, ServingWorkload, TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import FixedLength, PoissonArrivals

STRATEGIES = {
    "embedding": {"embed": "vocab"},
    "layer": {
        "norm": "seq",
        "qkv": "heads",
        "attention": "heads",
        "o": "heads",
        "add": "seq",
        "up": "ffn",
        "act": "ffn",
        "down": "ffn",
        "add2": "seq",
    },
    "head": {"lm_head": "vocab", "loss": "vocab"},
}


def _t(name: str, *dims: str) -> Tensor:
    return Tensor(name, ("batch", "seq", *dims))


def model(tied: str | None = None, window: int | None = None, **dims: int) -> ModelGraph:
    """The model; ``tied`` is the weight that the head shares, ``window`` attention's, ``dims`` overrides sizes."""
    x, y = _t("x", "hidden"), _t("y", "hidden")
    n, a, s = _t("n", "hidden"), _t("a", "hidden"), _t("s", "hidden")
    q, k, v = _t("q", "heads", "head_dim"), _t("k", "kv_heads", "head_dim"), _t("v", "kv_heads", "head_dim")
    ctx, u, g, d, logits = (
        _t("ctx", "heads", "head_dim"),
        _t("u", "ffn"),
        _t("g", "ffn"),
        _t("d", "hidden"),
        _t("logits", "vocab"),
    )
    kinds = OperatorKind
    embedding = Operator("embed", kinds.EMBEDDING, (_t("tokens"),), (x,), (Weight("weight", ("vocab", "hidden")),))
    layer = (
        Operator("norm", kinds.NORM, (x,), (n,), (Weight("w", ("hidden",)),), saved=("x",), flops_per_element=4.0),
        Operator(
            "qkv",
            kinds.MATMUL,
            (n,),
            (q, k, v),
            (
                Weight("wq", ("hidden", "heads", "head_dim")),
                Weight("wk", ("hidden", "kv_heads", "head_dim")),
                Weight("wv", ("hidden", "kv_heads", "head_dim")),
            ),
            saved=("n",),
        ),
        Operator(
            "attention",
            kinds.ATTENTION,
            (q, k, v),
            (ctx,),
            saved=("q", "k", "v", "ctx"),
            mask=AttentionMask.CAUSAL,
            window=window,
        ),
        Operator("o", kinds.MATMUL, (ctx,), (a,), (Weight("wo", ("heads", "head_dim", "hidden")),), saved=("ctx",)),
        Operator("add", kinds.ELEMENTWISE, (x, a), (s,), flops_per_element=1.0),
        Operator("up", kinds.MATMUL, (s,), (u,), (Weight("wu", ("hidden", "ffn")),), saved=("s",)),
        Operator("act", kinds.ELEMENTWISE, (u,), (g,), saved=("u",), flops_per_element=1.0),
        Operator("down", kinds.MATMUL, (g,), (d,), (Weight("wd", ("ffn", "hidden")),), saved=("g",)),
        Operator("add2", kinds.ELEMENTWISE, (s, d), (y,), flops_per_element=1.0),
    )
    head = (
        Operator(
            "lm_head", kinds.MATMUL, (x,), (logits,), (Weight("weight", ("hidden", "vocab"), tied_to=tied),), saved=("x",)
        ),
        Operator("loss", kinds.LOSS, (logits,), (_t("loss"),), saved=("logits",), flops_per_element=5.0),
    )
    sizes = {"hidden": 8, "heads": 4, "kv_heads": 2, "head_dim": 2, "ffn": 16, "vocab": 32} | dims
    return ModelGraph(
        "tiny",
        sizes,
        (Block("embedding", (embedding,), "x"), Block("layer", layer, "y"), Block("head", head, "loss")),
        (BlockRun("embedding"), BlockRun("layer", 4), BlockRun("head")),
    )


def cluster(nodes: int = 2, memory_bytes: int = 80_000, reserve: float = 0.1) -> Cluster:
    """Nodes of four devices of 1e5 FLOP/s."""
    device = Device("toy", memory_bytes, {DType.BF16: 1e5, DType.FP32: 1e5}, 1e5, "toy", price_per_hour=2.0)
    node = NodeType("toy-node", device, 4, Link("fast", 1e9, 1e-6), Link("slow", 1e8, 1e-5))
    return Cluster((NodeGroup("a", node, nodes),), memory_reserve=reserve)


COUNTED = StatedImplementation(
    memory=MemoryLaw(allocator=1.0, activations=1.0, transients=1.0, shared_sigma=0.0, own_sigma=0.0, origin="a test")
)
"""Runs take what is counted of them, always."""


def training_request(**changes: object) -> PlanRequest:
    """Global batch 8, sequence 16, AdamW, launchable by Megatron-LM; ``changes`` replaces parts."""
    workload = TrainingWorkload("training", global_batch=8, seq_len=16, implementation=COUNTED)
    request = TrainingRequest(model(), cluster(), workload)
    return replace(request, **changes)  # type: ignore[arg-type]


def training_plan() -> Plan:
    """dp 2, tp 2, pp 2, sequence parallel, ZeRO-1, four micro-batches of one sequence; step time 14.5 s."""
    axes = Axes(dp=2, tp=2, pp=2)
    memory = StageMemory(
        weights_bytes=2.0 * 592,
        gradients_bytes=4.0 * 592,
        optimizer_bytes=12.0 * 592 / 2,
        activations_bytes=2.0 * 2 * 1280,
        transient_bytes=0.0,
        overhead_bytes=1000.0,
        capacity_bytes=72_000.0,
    )
    first = Stage(
        blocks=(LayerSpan("embedding", 0, 1), LayerSpan("layer", 1, 2)),
        devices=(DeviceRange(0, 4),),
        axes=axes,
        recompute=Recompute.NONE,
        zero_stage=1,
        time_s=2.0,
        extra_s=0.5,
        in_flight=2,
        memory=memory,
    )
    last = replace(
        first,
        blocks=(LayerSpan("layer", 3, 2), LayerSpan("head", 5, 1)),
        devices=(DeviceRange(4, 4),),
        time_s=3.0,
        extra_s=0.25,
        in_flight=1,
        memory=replace(memory, activations_bytes=2.0 * 1280 + 1152, transient_bytes=512.0),
    )
    tokens_per_s = 8 * 16 / 14.5
    return plan_of(
        PlanRecord(
            kind="training",
            feasible=True,
            certificate=Certificate(Status.OPTIMAL, 14.5, 14.5, 0.0, "s", "all"),
            devices=8,
            search=SearchStats(10, 3, 0.1),
            calibration=(),
            model="tiny",
            predicted=Predicted(
                tokens_per_s=tokens_per_s,
                peak_memory_bytes=1184.0 + 2368 + 3552 + 5120 + 1000,
                step_time_s=14.5,
                mfu=3 * 8 * 89600 / (14.5 * 8e5),
                cost_per_million_tokens=8 * 2.0 / 3600 / tokens_per_s * 1e6,
            ),
            axes=axes,
            stages=(first, last),
            shardings=tuple(
                OperatorSharding(block, operator, dim) for block, named in STRATEGIES.items() for operator, dim in named.items()
            ),
            sequence_parallel=True,
            schedule="1f1b",
            microbatch=Microbatch(1, 4),
            breakdown=TimeBreakdown(8.0, 0.0, 2.0, 0.0, 1.0, 0.5, 2.5, 0.5),
        )
    )


def infeasible_plan() -> Plan:
    """Nothing fits: 100 bytes needed, 80 there."""
    return Plan(
        kind="training",
        feasible=False,
        certificate=Certificate(Status.INFEASIBLE, None, None, None, "s", "all"),
        devices=8,
        search=SearchStats(10, 3, 0.1),
        calibration=(),
        model="tiny",
        reason=Reason("device_memory", 100.0, 80.0, "bytes", "too little memory"),
    )


def serving_request(**changes: object) -> PlanRequest:
    """Two requests a second of 6 + 4 tokens, launchable by vLLM."""
    workload = ServingWorkload("serving", PoissonArrivals("poisson", 2.0), FixedLength(6), FixedLength(4))
    request = ServingRequest(model(), cluster(), workload, search=Search(launcher=Launcher.VLLM))
    return replace(request, **changes)  # type: ignore[arg-type]


def serving_plan() -> Plan:
    """Two replicas of tp 2. A token's keys and values take 4 layers x 2 x 2 elements x 2 bytes = 32 bytes on a rank."""
    axes = Axes(tp=2)
    stage = Stage(
        blocks=(LayerSpan("embedding", 0, 1), LayerSpan("layer", 1, 4), LayerSpan("head", 5, 1)),
        devices=(DeviceRange(0, 2),),
        axes=axes,
        recompute=Recompute.NONE,
        zero_stage=0,
        time_s=0.01,
        extra_s=0.0,
        in_flight=1,
        memory=StageMemory(
            weights_bytes=2.0 * (128 + 4 * 232 + 128),
            gradients_bytes=0.0,
            optimizer_bytes=0.0,
            activations_bytes=100.0,
            transient_bytes=0.0,
            overhead_bytes=1000.0,
            capacity_bytes=72_000.0,
            kv_cache_bytes=960.0,
        ),
    )
    plan = Plan(
        kind="serving",
        feasible=True,
        certificate=Certificate(Status.OPTIMAL, 4.0, 4.0, 0.0, "devices", "all"),
        devices=4,
        search=SearchStats(4, 4, 0.1),
        calibration=(),
        model="tiny",
        predicted=Predicted(tokens_per_s=8.0, peak_memory_bytes=stage.memory.total_bytes, ttft_p95_s=0.5, tpot_p95_s=0.02),
    )
    load = EngineLoad(
        replicas=2,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        utilisation=0.5,
        prefill_time_s=0.1,
        decode_step_s=0.01,
        mean_batch=3.0,
    )
    return replace(plan, layout=Replicas(axes, (stage,), load))
