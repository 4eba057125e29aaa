"""Random small training requests: up to 6 layers and 8 devices, mixed memory, all choices open or restricted at random."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from meshwright.costmodels.cluster.cluster import Cluster, Device, Link, NodeGroup, NodeType, Nvme
from meshwright.costmodels.memory.training_state import Optimizer, Tier, framework_overhead_bytes
from meshwright.costmodels.model.experts import PowerLawRouting
from meshwright.costmodels.model.operators import AttentionMask, Operator, OperatorKind, Tensor, Weight
from meshwright.costmodels.network.token_dispatch import TokenDispatch
from meshwright.costmodels.pipeline import TOKEN_SLICED, Schedule
from meshwright.costmodels.units import DType
from meshwright.solver.problem.choices import Gradients, GroupOrder, Launcher, Recompute, Space, TpOverlap
from meshwright.solver.problem.graph import Block, BlockRun, ModelGraph
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.training.space.implementation import launcher_implementation

T = TypeVar("T")
TOKENS = ("batch", "seq")
RISKS = (0.5, 0.5, 0.3, 0.05, 0.01)
ODD_SHAPES = ((3, 1), (3, 2), (1, 3), (2, 3), (6, 1), (5, 1))
"""Devices of a node and nodes, of clusters whose degrees are no powers of two."""


def random_request(seed: int) -> TrainingRequest:
    """A request whose space can be enumerated; about one in four has no plan that fits."""
    rng = np.random.default_rng(seed)
    moving, cutting = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 3])
    space = Space.FREE if rng.random() < 0.4 else Space.LAUNCHABLE
    model = random_free_model(rng) if space is Space.FREE else random_model(rng)
    workload = TrainingWorkload(
        "training", global_batch=int(rng.choice([2, 4, 6, 8, 16])), seq_len=int(rng.choice([255, 256])), precision=DType.BF16
    )
    free = space is Space.FREE
    launcher = Launcher(str(rng.choice(["megatron-lm", "torchtitan", "deepspeed"])))
    search = Search(
        space=space,
        launcher=launcher,
        recompute=_some(rng, modes_of(space, launcher), at_least=1 if free else 0),
        zero_stages=_some(rng, [0, 1, 2, 3], at_least=1 if free else 0),
        microbatch=(1,) if free else (1, 2) if rng.random() < 0.7 else (),
        schedules=_some_schedules(rng, free=free, eager=free and np.random.default_rng([seed, 4]).random() < 0.3),
        pp=(2, 4) if rng.random() < 0.5 else (),
        offload_optimizer=[(), (0.0, 0.5), (0.0, 1.0), (0.0, 0.25, 1.0)][int(moving.integers(4))],
        offload_activations=(0.0, 0.5) if moving.random() < 0.4 else (),
        tp_overlap=[(), (TpOverlap.CHUNKED,), *[(TpOverlap.EXPOSED,)] * 4][int(cutting.integers(6))],
    )
    cluster = random_cluster(rng, model, free=space is Space.FREE)
    link = str(cutting.choice(["nvlink", "nvlink", "pcie"]))
    groups = tuple(
        replace(group, node=replace(group.node, intra=replace(group.node.intra, name=link))) for group in cluster.groups
    )
    request = TrainingRequest(model, replace(cluster, groups=groups), workload, search=search)
    return _at_risk(request, RISKS[int(np.random.default_rng([seed, 5]).integers(len(RISKS)))])


def _at_risk(request: TrainingRequest, risk: float) -> TrainingRequest:
    """The request at a risk of running out of memory, on devices that have so much more: as tight as it was at the median."""
    margin = launcher_implementation(request.search).memory.margin(risk)
    groups = tuple(
        replace(
            group,
            node=replace(
                group.node, device=replace(group.node.device, memory_bytes=int(margin * group.node.device.memory_bytes))
            ),
        )
        for group in request.cluster.groups
    )
    search = replace(request.search, risk=risk)
    return replace(request, cluster=replace(request.cluster, groups=groups), search=search)


def varied_request(seed: int) -> TrainingRequest:
    """A random request; some with groups of nodes in any order, heads exchanged across nodes, tokens that prefer some experts
    or go once to each node, more memory, state-space mixers, another optimizer and gradients that are released, or numbers of
    devices that are no powers of two."""
    request, rng = random_request(seed), np.random.default_rng([seed, 2])
    workload, search = request.workload, request.search
    if len(request.cluster.groups) > 1 and rng.random() < 0.4:
        search = replace(search, group_order=GroupOrder.ANY)
    if rng.random() < 0.5:
        search = replace(search, etp=(1, 2, 3, 4, 6, 8))
    if rng.random() < 0.2:
        search = replace(search, ulysses=(1, 2, 3, 4))
    if rng.random() < 0.3:
        workload = replace(workload, experts=PowerLawRouting("power_law", 0.5), dispatch=TokenDispatch.ONCE_A_NODE)
    request = replace(request, workload=workload, search=search)
    if rng.random() < 0.6:
        request = replace(request, cluster=roomier(request, rng))
    if rng.random() < 0.25:
        request = replace(request, model=_with_mixers(request.model, rng))
    if rng.random() < 0.25:
        optimizers = (Optimizer.ADAMW, list(Optimizer)[1 + int(rng.integers(len(Optimizer) - 1))])
        search = replace(request.search, gradients=(Gradients.KEPT, Gradients.RELEASED), optimizers=optimizers)
        request = replace(request, search=search)
    return request if search.space is Space.FREE or rng.random() > 0.3 else _odd(request, rng)


def roomier(request: TrainingRequest, rng: np.random.Generator) -> Cluster:
    """The cluster with room for up to four more process groups and three times the state on every device."""
    communicators, state = framework_overhead_bytes(communicators=4), 54.0 * request.model.parameters()
    more = int(rng.uniform(0.1, 1.0) * (communicators + state))

    def with_room(group: NodeGroup) -> NodeGroup:
        device = replace(group.node.device, memory_bytes=group.node.device.memory_bytes + more)
        return replace(group, node=replace(group.node, device=device))

    return replace(request.cluster, groups=tuple(with_room(group) for group in request.cluster.groups))


def _with_mixers(model: ModelGraph, rng: np.random.Generator) -> ModelGraph:
    """The model with state-space mixers in the place of feed-forward layers, if it has any."""
    dims = {
        **model.dims,
        "ssm_heads": 8,
        "ssm_groups": int(rng.choice([1, 2, 4])),
        "ssm_width": 32,
        "ssm_state": 16,
        "kernel": 4,
    }
    blocks = tuple(mixer_block() if block.name == "mlp" else block for block in model.blocks)
    return replace(model, dims=dims, blocks=blocks) if blocks != model.blocks else model


def _odd(request: TrainingRequest, rng: np.random.Generator) -> TrainingRequest:
    """The request on 3, 5 or 6 devices, with sizes that 3 divides and batches that 3 or 5 divide."""
    workload = request.workload
    dims = {**request.model.dims, "hidden": 384, "ffn": 384 * int(rng.choice([2, 3])), "head_dim": 64}
    dims |= {"heads": 6, "kv_heads": int(rng.choice([1, 2, 3, 6])), "experts": 6, "expert_ffn": 384}
    per_node, nodes = ODD_SHAPES[int(rng.integers(len(ODD_SHAPES)))]
    groups = tuple(
        replace(group, node=replace(group.node, devices_per_node=per_node), nodes=max(1, nodes // len(request.cluster.groups)))
        for group in request.cluster.groups
    )
    return replace(
        request,
        model=replace(request.model, dims=dims),
        cluster=Cluster(groups),
        workload=replace(workload, global_batch=int(rng.choice([6, 10, 12])), seq_len=int(rng.choice([240, 255]))),
        search=replace(request.search, pp=(2, 3) if request.search.pp else ()),
    )


def memory_request(seed: int) -> TrainingRequest:
    """A request with memory choices opened that are closed unless a request names them; the others are mostly fixed.

    Batches are small, so that a step of one micro-batch is common.
    """
    asked = random_request(seed)
    workload = asked.workload
    rng = np.random.default_rng([seed, 2])
    kept, released = Gradients.KEPT, Gradients.RELEASED
    forced = asked.search.space is Space.FREE and rng.random() < 0.5
    moved: list[tuple[float, ...]] = [(), (0.5,), (1.0,)] if forced else [(), (0.0, 0.5), (0.0, 1.0)]
    search = replace(
        asked.search,
        recompute=((Recompute.NONE, Recompute.FULL)[int(rng.integers(2))],),
        microbatch=(),
        pp=(1, 2),
        schedules=(Schedule.ONE_F_ONE_B,),
        offload_optimizer=moved[int(rng.integers(3))],
        offload_activations=moved[int(rng.integers(2))],
        offload_weights=moved[int(rng.integers(3))],
        offload_gradients=moved[int(rng.integers(3))],
        gradients=[(), (kept, released), (released,)][int(rng.integers(3 if asked.search.space is Space.FREE else 2))],
        optimizers=(Optimizer.ADAMW, *(one for one in list(Optimizer)[1:] if rng.random() < 0.4)),
    )
    asked = replace(asked, workload=replace(workload, global_batch=int(rng.choice([2, 4]))), search=search)
    if rng.random() < 0.5:
        return asked
    drives, tiers = Nvme(10**13, 5e9, 3e9), [(), (Tier.NVME,), (Tier.HOST, Tier.NVME)]
    groups = (replace(group, node=replace(group.node, nvme=drives)) for group in asked.cluster.groups)
    places = {f"offload_{kind}_to": tiers[int(rng.integers(3))] for kind in ("optimizer", "weights")}
    return replace(asked, cluster=Cluster(tuple(groups)), search=replace(search, **places))


def sliced_request(seed: int) -> TrainingRequest:
    """A request whose sequences may pass in token slices: few layers of attention and of experts or products."""
    asked, rng = random_request(seed), np.random.default_rng([seed, 4])
    kinds = ["attn", *([str(rng.choice(["pair", "moe"]))] if rng.random() < 0.5 else [])]
    blocks = {"attn": lean_attention_block(), "pair": pair_block(), "moe": expert_block()}
    layers = [BlockRun(str(rng.choice(kinds))) for _ in range(int(rng.integers(2, 5)))]
    runs = (BlockRun("embedding"), *layers, BlockRun("head"))
    used = {run.block for run in runs}
    inner = tuple(block for name, block in blocks.items() if name in used)
    dims = {"hidden": 512, "ffn": 1024, "vocab": 1001, "heads": 4, "kv_heads": int(rng.choice([1, 2, 4])), "head_dim": 128}
    dims |= {"experts": 2, "top_k": 2, "expert_ffn": 512}
    model = ModelGraph("random-sliced", dims, (embedding_block(), *inner, head_block()), runs)
    workload = replace(asked.workload, global_batch=int(rng.choice([1, 2, 4])), seq_len=int(rng.choice([512, 640, 1024])))
    counts = [(1, 2), (2, 3), (1, 2, 4), (4,)][int(rng.integers(4))]
    of_slices = [s for s in Schedule if s in TOKEN_SLICED]
    beside = (Schedule.ONE_F_ONE_B, Schedule.ZB_H1, Schedule.INTERLEAVED)[int(rng.integers(3))]
    search = Search(
        space=Space.FREE,
        recompute=((Recompute.NONE, Recompute.FULL), (Recompute.SELECTIVE,), tuple(Recompute)[:2])[int(rng.integers(3))],
        zero_stages=((0, 2), (1,), (0, 1))[int(rng.integers(3))],
        pp=(2, 4) if rng.random() < 0.7 else (),
        cp=(1,) if rng.random() < 0.5 else (),
        schedules=[(), (of_slices[0], beside), (of_slices[1], beside), (*of_slices,)][int(rng.integers(4))],
        offload_optimizer=(0.0, 0.5) if rng.random() < 0.3 else (),
        tp_overlap=() if rng.random() < 0.2 else (TpOverlap.EXPOSED,),
        token_slices=counts,
    )
    request = replace(asked, model=model, workload=workload, search=search, cluster=random_cluster(rng, model, free=True))
    return replace(request, cluster=roomier(request, rng)) if rng.random() < 0.8 else request


def modes_of(space: Space, launcher: Launcher) -> list[Recompute]:
    """Recompute modes there are: of launchers, Megatron-LM alone recomputes norms and latents by themselves."""
    every = space is Space.FREE or launcher is Launcher.MEGATRON_LM
    return [mode for mode in Recompute if every or mode is not Recompute.FINE_GRAINED]


def _some_schedules(rng: np.random.Generator, *, free: bool, eager: bool) -> tuple[Schedule, ...]:
    """Schedules beside 1F1B and GPipe ask for more layers and micro-batches than many requests have: then those two stay."""
    if not free and rng.random() < 0.5:
        return ()
    plain = (Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.EAGER_ONE_F_ONE_B)
    rare = [schedule for schedule in Schedule if schedule not in TOKEN_SLICED.union(plain)]
    common = [Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.INTERLEAVED]
    picked = (common[int(rng.integers(3))], *(_some(rng, rare, at_least=0) if free else _some(rng, rare, at_least=1)))
    return (*picked, Schedule.EAGER_ONE_F_ONE_B) if eager else picked


def _some(rng: np.random.Generator, values: list[T], *, at_least: int) -> tuple[T, ...]:
    """At most two of the values; none means no restriction."""
    picked = rng.permutation(len(values))[: int(rng.integers(at_least, 3))]
    return tuple(values[i] for i in sorted(picked))


def random_model(rng: np.random.Generator) -> ModelGraph:
    """Embedding, one or two kinds of layers, head: at most 6 blocks in the chain."""
    hidden = int(rng.choice([256, 512]))
    dims = {"hidden": hidden, "ffn": hidden * int(rng.choice([2, 3, 4])), "vocab": int(rng.choice([1000, 4096]))}
    dims |= {"heads": 4, "kv_heads": int(rng.choice([1, 2, 4])), "head_dim": hidden // 4}
    dims |= {"experts": 4, "top_k": 2, "expert_ffn": hidden}
    kinds = ["mlp", "attn"] if rng.random() < 0.4 else [str(rng.choice(["mlp", "attn", "moe"]))]
    blocks = {"mlp": mlp_block(), "attn": attention_block(), "moe": expert_block()}
    runs = [BlockRun("embedding")]
    runs += [BlockRun(str(rng.choice(kinds))) for _ in range(int(rng.integers(1, 5)))]
    runs.append(BlockRun("head"))
    used = {run.block for run in runs}
    inner = tuple(block for name, block in blocks.items() if name in used)
    return ModelGraph("random", dims, (embedding_block(), *inner, head_block()), tuple(runs))


def random_free_model(rng: np.random.Generator) -> ModelGraph:
    """In the free space every dim that divides is a choice for every operator: few operators, and odd sizes, bound it."""
    hidden, ffn = [(256, 512), (257, 512), (256, 513)][int(rng.integers(3))]
    dims = {"hidden": hidden, "ffn": ffn, "vocab": int(rng.choice([1001, 2048]))}
    layers = BlockRun("pair", int(rng.integers(1, 5)))
    return ModelGraph(
        "random-free", dims, (embedding_block(), pair_block(), head_block()), (BlockRun("embedding"), layers, BlockRun("head"))
    )


def random_cluster(rng: np.random.Generator, model: ModelGraph, *, free: bool) -> Cluster:
    """One or two kinds of nodes with little memory: overhead of the default group and 0 to 3 axes, and a share of the state."""
    n_groups = int(rng.choice([1, 1, 2]))
    shapes = [(1, 2), (2, 1), (2, 2), (4, 1)] + ([] if free else [(4, 2), (8, 1)])
    per_node, nodes = shapes[int(rng.integers(len(shapes)))]
    if n_groups == 2 and nodes == 1:
        per_node //= 2
    groups = []
    for i in range(n_groups):
        scale = float(rng.uniform(0.5, 1.0)) if i else 1.0
        overhead = framework_overhead_bytes(communicators=1 + int(rng.integers(0, 4)))
        state = 18.0 * model.parameters() * float(rng.uniform(0.1, 2.0))
        device = Device(
            name=f"device-{i}",
            memory_bytes=int(overhead + state),
            peak_flops={DType.BF16: 300e12 * scale},
            memory_bytes_per_s=2e12 * scale,
            calibration="a100_sxm",
        )
        intra = Link("intra", 300e9 * scale, 2e-6)
        node = NodeType(f"node-{i}", device, per_node, intra, Link("inter", 25e9 * per_node, 5e-6))
        groups.append(NodeGroup(f"group-{i}", node, max(1, nodes // n_groups)))
    return Cluster(tuple(groups))


def embedding_block() -> Block:
    ids, out = Tensor("ids", TOKENS), Tensor("embedded", (*TOKENS, "hidden"))
    embed = Operator("embed", OperatorKind.EMBEDDING, (ids,), (out,), (Weight("table", ("vocab", "hidden")),))
    return Block("embedding", (embed,), "embedded")


def mlp_block() -> Block:
    x, y = Tensor("x", (*TOKENS, "hidden")), Tensor("y", (*TOKENS, "hidden"))
    up, act = Tensor("up", (*TOKENS, "ffn")), Tensor("act", (*TOKENS, "ffn"))
    normed, down = Tensor("normed", (*TOKENS, "hidden")), Tensor("down", (*TOKENS, "hidden"))
    return Block(
        "mlp",
        (
            Operator("norm", OperatorKind.NORM, (x,), (normed,), (Weight("g", ("hidden",)),), saved=("x", "normed")),
            Operator("up", OperatorKind.MATMUL, (normed,), (up,), (Weight("w1", ("hidden", "ffn")),), saved=("normed",)),
            Operator("gelu", OperatorKind.ELEMENTWISE, (up,), (act,), saved=("up",), flops_per_element=8.0),
            Operator("down", OperatorKind.MATMUL, (act,), (down,), (Weight("w2", ("ffn", "hidden")),), saved=("act",)),
            Operator("add", OperatorKind.ELEMENTWISE, (x, down), (y,), flops_per_element=1.0),
        ),
        "y",
    )


def mixer_block() -> Block:
    """A state-space mixer: convolution and scan in chunks between two projections, under the name of the block it replaces."""
    x, y, o = (Tensor(name, (*TOKENS, "hidden")) for name in ("x", "y", "o"))
    heads, groups = (*TOKENS, "ssm_heads", "ssm_width"), (*TOKENS, "ssm_groups", "ssm_state")
    u, b, c = Tensor("u", heads), Tensor("b", groups), Tensor("c", groups)
    dt, out = Tensor("dt", (*TOKENS, "ssm_heads")), Tensor("scanned", heads)
    mixed = tuple(Tensor(f"{tensor.name}_mixed", tensor.dims) for tensor in (u, b, c))
    weights = tuple(Weight(f"w_{tensor.name}", ("hidden", *tensor.dims[2:])) for tensor in (u, b, c, dt))
    kernels = tuple(Weight(f"k_{tensor.name}", (*tensor.dims[2:], "kernel")) for tensor in (u, b, c))
    back = Weight("w_out", ("ssm_heads", "ssm_width", "hidden"))
    kept = tuple(tensor.name for tensor in (*mixed, dt))
    return Block(
        "mlp",
        (
            Operator("in", OperatorKind.MATMUL, (x,), (u, b, c, dt), weights, saved=("x",)),
            Operator("conv", OperatorKind.CONVOLUTION, (u, b, c), mixed, kernels, saved=("u", "b", "c")),
            Operator("scan", OperatorKind.SCAN, (*mixed, dt), (out,), saved=kept, chunk=32),
            Operator("out", OperatorKind.MATMUL, (out,), (o,), (back,), saved=("scanned",)),
            Operator("add", OperatorKind.ELEMENTWISE, (x, o), (y,), flops_per_element=1.0),
        ),
        "y",
    )


def attention_block() -> Block:
    x, y, o = (Tensor(name, (*TOKENS, "hidden")) for name in ("x", "y", "o"))
    q, c = Tensor("q", (*TOKENS, "heads", "head_dim")), Tensor("c", (*TOKENS, "heads", "head_dim"))
    k, v = (Tensor(name, (*TOKENS, "kv_heads", "head_dim")) for name in ("k", "v"))
    weights = (
        Weight("wq", ("hidden", "heads", "head_dim")),
        Weight("wk", ("hidden", "kv_heads", "head_dim")),
        Weight("wv", ("hidden", "kv_heads", "head_dim")),
    )
    return Block(
        "attn",
        (
            Operator("qkv", OperatorKind.MATMUL, (x,), (q, k, v), weights, saved=("x",)),
            Operator("core", OperatorKind.ATTENTION, (q, k, v), (c,), saved=("q", "k", "v", "c"), mask=AttentionMask.CAUSAL),
            Operator("out", OperatorKind.MATMUL, (c,), (o,), (Weight("wo", ("heads", "head_dim", "hidden")),), saved=("c",)),
            Operator("add", OperatorKind.ELEMENTWISE, (x, o), (y,), flops_per_element=1.0),
        ),
        "y",
    )


def lean_attention_block() -> Block:
    """Attention between its two projections, the least in which tokens read one another."""
    block = attention_block()
    qkv, core, out = block.operators[:3]
    return Block("attn", (qkv, core, out), out.outputs[0].name)


def expert_block() -> Block:
    """Two products of each expert, between dispatch and combine."""
    x, y, sent = (
        Tensor("x", (*TOKENS, "hidden")),
        Tensor("y", (*TOKENS, "hidden")),
        Tensor("sent", (*TOKENS, "top_k", "hidden")),
    )
    up, back = Tensor("up", (*TOKENS, "top_k", "expert_ffn")), Tensor("back", (*TOKENS, "top_k", "hidden"))
    w1, w2 = Weight("w1", ("experts", "hidden", "expert_ffn")), Weight("w2", ("experts", "expert_ffn", "hidden"))
    return Block(
        "moe",
        (
            Operator("dispatch", OperatorKind.ELEMENTWISE, (x,), (sent,), flops_per_element=1.0),
            Operator("up", OperatorKind.MATMUL, (sent,), (up,), (w1,), saved=("sent",)),
            Operator("down", OperatorKind.MATMUL, (up,), (back,), (w2,), saved=("up",)),
            Operator("combine", OperatorKind.ELEMENTWISE, (back,), (y,), flops_per_element=2.0),
        ),
        "y",
    )


def pair_block() -> Block:
    """Two matrix multiplications, the least that can be split by columns and rows."""
    x, up, y = Tensor("x", (*TOKENS, "hidden")), Tensor("up", (*TOKENS, "ffn")), Tensor("y", (*TOKENS, "hidden"))
    return Block(
        "pair",
        (
            Operator("up", OperatorKind.MATMUL, (x,), (up,), (Weight("w1", ("hidden", "ffn")),), saved=("x",)),
            Operator("down", OperatorKind.MATMUL, (up,), (y,), (Weight("w2", ("ffn", "hidden")),), saved=("up",)),
        ),
        "y",
    )


def head_block() -> Block:
    x, logits, loss = Tensor("x", (*TOKENS, "hidden")), Tensor("logits", (*TOKENS, "vocab")), Tensor("loss", TOKENS)
    return Block(
        "head",
        (
            Operator("lm_head", OperatorKind.MATMUL, (x,), (logits,), (Weight("w", ("hidden", "vocab")),), saved=("x",)),
            Operator("loss", OperatorKind.LOSS, (logits,), (loss,), saved=("logits",), flops_per_element=5.0),
        ),
        "loss",
    )
