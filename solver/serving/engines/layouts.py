"""The space of serving layouts: one node group, the ranks of a stage, pp stages, and the engine's batch limits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from meshwright.costmodels.cluster.cluster import NodeGroup
from meshwright.costmodels.errors import ModelError, WorkloadError
from meshwright.costmodels.model.dims import EXPERT_FFN, EXPERTS, HEADS, KV_HEADS
from meshwright.costmodels.model.experts import BALANCED, ExpertRouting, HistogramRouting
from meshwright.costmodels.model.formats import WeightFormat
from meshwright.costmodels.model.operators import AttentionMask, OperatorKind
from meshwright.costmodels.model.split_dims import RankGrid, divides
from meshwright.costmodels.serving.attention import latent_expansion
from meshwright.costmodels.serving.engine_profile import ServingEngine
from meshwright.costmodels.serving.step_time import ServingPrecision
from meshwright.costmodels.units import DType
from meshwright.solver.answer.stage import LayerSpan
from meshwright.solver.problem.choices import ServingMode
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.launchers.servers import PromptSharing
from meshwright.solver.problem.launchers.table import ENGINES
from meshwright.solver.problem.request import ServingRequest, ServingWorkload
from meshwright.solver.problem.search import Search

PIPELINE_DEGREES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)

STEP_TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16384)
"""Token limits of a step: powers of two around the defaults of vLLM (2048 to 8192, by version and device); what MLPerf's
submitters name for tight limits goes down to 256."""

SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""Limits of sequences at once: powers of two up to the largest that MLPerf's submitters name."""

ORDINARY_SEQUENCES = 512
"""Twice the default of vLLM (256). Larger limits take memory from the cache, and serve only where this many run at once: they
are looked at where a simulation reaches it."""


SPACE = (
    f"replicas in one node group, tp x kvp inside a node, pp in {{{', '.join(map(str, PIPELINE_DEGREES))}}}, attention "
    "groups (without pp) and experts over whole nodes, either attention groups or kvp, "
    f"steps of {STEP_TOKENS[0]} to {STEP_TOKENS[-1]} tokens and {SEQUENCES[0]} to {SEQUENCES[-1]} sequences (powers of two; "
    f"over {ORDINARY_SEQUENCES} where as many run at once), "
    "chunked prefill, requests split evenly at random"
)


class WorkerWork(StrEnum):
    """The work of a worker: prompts alone, or answers too."""

    PROMPTS = "prompts"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Layout:
    """A replica: pp stages of the ranks of ``grid``, devices of one node group, whose ranks start at ``first_rank``."""

    group: NodeGroup
    first_rank: int
    grid: RankGrid
    pp: int
    work: WorkerWork = field(default=WorkerWork.BOTH, kw_only=True)

    @property
    def repeats_answers(self) -> bool:
        """True if ranks that share prompts decode, all of them the same tokens."""
        return self.grid.cp > 1 and self.work is WorkerWork.BOTH

    @property
    def answer_copies(self) -> int:
        """The number of times that a replica computes, for a token of an answer, what does not belong to experts."""
        return self.grid.cp if self.repeats_answers else 1

    @property
    def devices(self) -> int:
        """Devices of a replica."""
        return self.grid.ranks * self.pp

    @property
    def schedulers(self) -> int:
        """Attention groups: each forms steps of its own requests and has its own cache."""
        return self.grid.attention_dp

    @property
    def most_replicas(self) -> int:
        """Replicas that the node group has room for."""
        return self.group.n_devices // self.devices

    @property
    def name(self) -> str:
        """Words for people: "tp 4" or "tp 2 x attention dp 4, ep 8, pp 2"."""
        grid = self.grid
        degrees = {
            "tp": grid.tp,
            "kvp": grid.kvp,
            "cp": grid.cp,
            "attention dp": grid.attention_dp,
            "ep": grid.ep,
            "pp": self.pp,
        }
        return " x ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1 or name == "tp")

    @property
    def splits(self) -> int:
        """Ways in which a replica splits the model."""
        grid = self.grid
        return sum(degree > 1 for degree in (grid.tp, grid.kvp, grid.cp, grid.attention_dp, grid.ep, self.pp))

    @property
    def key(self) -> tuple[str | int, ...]:
        """The key that tells the layouts of a request apart; also their canonical order."""
        grid = self.grid
        return self.group.name, grid.tp, self.pp, grid.kvp, grid.attention_dp, grid.ep, grid.cp


def stage_width(layout: Layout) -> int:
    """Devices after which a worker may start: a stage, or a node where a stage fills several."""
    return min(layout.grid.ranks, layout.group.node.devices_per_node)


class Tokens(StrEnum):
    """The split of the tokens of a step: one group of dense ranks runs them all, or several share those of prompts (cp)."""

    WHOLE = "whole"
    SHARED = "shared"


def prefill_layouts(request: ServingRequest) -> Iterator[Layout]:
    """Layouts of prefill workers: those of all workers, then, where nothing is drafted, those whose ranks share the tokens of
    prompts."""
    if not request.search.cp or 1 in request.search.cp:
        yield from layouts(request)
    if request.workload.speculation is None:
        yield from layouts(request, Tokens.SHARED)


def worker_layouts(request: ServingRequest) -> Iterator[Layout]:
    """Layouts of workers that do both phases: those whose ranks share prompts where ``search.cp`` names their degree."""
    yield from layouts(request)
    asked = ServingMode.AGGREGATED in request.search.modes and max(request.search.cp, default=1) > 1
    if asked and request.workload.speculation is None:
        yield from (replace(layout, work=WorkerWork.BOTH) for layout in layouts(request, Tokens.SHARED))


def layouts(request: ServingRequest, tokens: Tokens = Tokens.WHOLE) -> Iterator[Layout]:
    """Every layout of the space that divides the model, in canonical order.

    Ranks of a replica are consecutive; tp x kvp divides the devices of a node, so such a group never leaves it unless the
    search names a tp of several nodes, and a stage fills a part of a node or whole nodes. On one node powers of two fit, too.
    """
    search, model = request.search, request.model
    speculation = request.workload.speculation
    first, work = 0, WorkerWork.PROMPTS if tokens is Tokens.SHARED else WorkerWork.BOTH
    of_layers = {name for name in set(model.layers) if is_layer(model, name)}
    n_layers = sum(1 for name in model.layers if name in of_layers)
    for group in request.cluster.groups:
        found = []
        for grid in _grids(request, group, tokens) if has_format(group, request) else ():
            for pp in PIPELINE_DEGREES if speculation is None else (1,):
                allowed = not search.pp or pp in search.pp
                # Engines place the stages of a group next to one another, this model the groups of a stage.
                allowed = allowed and (pp == 1 or grid.token_groups == 1)
                if allowed and pp <= max(1, n_layers) and grid.ranks * pp <= group.n_devices:
                    found.append(Layout(group, first, grid, pp, work=work))
        yield from sorted(found, key=lambda layout: layout.key)
        first += group.n_devices


def _grids(request: ServingRequest, group: NodeGroup, tokens: Tokens) -> Iterator[RankGrid]:
    """Ranks of a stage that the engine can run and the search allows; those that share tokens stay in a node."""
    per_node, search, workload = group.node.devices_per_node, request.search, request.workload
    shape = served_shape(request.model, workload.weight_format)
    # Over nodes tensor parallelism is slow: only where the search names such a degree.
    wider = [tp for tp in search.tp if tp > per_node and tp % per_node == 0 and tp <= group.n_devices]
    for tp, kvp in (*itertools.product(_shares(group), repeat=2), *((tp, 1) for tp in wider)):
        if tp <= per_node and tp * kvp not in _shares(group):
            continue
        in_a_node = max(1, per_node // (tp * kvp))
        over_nodes = [in_a_node * nodes for nodes in range(2, group.nodes + 1)]
        inside = [n for n in range(1, in_a_node + 1) if in_a_node % n == 0 or n * tp * kvp in _shares(group)]
        groups = [(attention_dp, 1) for attention_dp in (*inside, *over_nodes)]
        if tokens is Tokens.SHARED:
            groups = [(a, cp) for a in _divisors(in_a_node) for cp in _divisors(in_a_node // a) if cp > 1]
        for attention_dp, cp in groups:
            for ep in _divisors(tp * kvp * attention_dp * cp):
                grid = RankGrid(tp=tp, kvp=kvp, attention_dp=attention_dp, ep=ep, cp=cp)
                if not (_allowed(grid, search) and divides(request.model.dims, grid) and runs(search.engine, grid, shape)):
                    continue
                if holds_copies(grid, experts=shape.experts, copies=workload.experts.redundant_experts):
                    yield grid


def _shares(group: NodeGroup) -> list[int]:
    """Numbers of a node's devices that ranks of a group may fill: divisors, and where no replica can lie on two nodes powers of
    two, which heads and experts come in: 64 of 72."""
    per_node = group.node.devices_per_node
    powers = [2**power for power in range(per_node.bit_length())] if group.nodes == 1 else []
    return sorted({*_divisors(per_node), *powers})


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _allowed(grid: RankGrid, search: Search) -> bool:
    degrees = [(grid.tp, search.tp), (grid.kvp, search.kvp), (grid.attention_dp, search.attention_dp), (grid.ep, search.ep)]
    if grid.cp > 1:
        degrees.append((grid.cp, search.cp))
    return all(not allowed or degree in allowed for degree, allowed in degrees)


def has_format(group: NodeGroup, request: ServingRequest) -> bool:
    """Return True if the group's device computes in the formats that the workload needs."""
    precision = serving_precision(request.workload)
    device = group.node.device
    return {precision.weights.computed_in(device), precision.activations} <= set(device.peak_flops)


def require_format(request: ServingRequest) -> None:
    """Raise ClusterError where no device of the cluster computes in the formats that the workload needs."""
    if not any(has_format(group, request) for group in request.cluster.groups):
        device, precision = request.cluster.groups[0].node.device, serving_precision(request.workload)
        device.peak(precision.weights.computed_in(device))
        device.peak(precision.activations)


def serving_precision(workload: ServingWorkload) -> ServingPrecision:
    """Formats of a workload: what is not quantised stays in 16 bits, the cache too unless its format is named (vLLM,
    --kv-cache-dtype auto)."""
    activations = DType.FP16 if workload.precision is DType.FP16 else DType.BF16
    return ServingPrecision(workload.weight_format, activations, workload.kv_dtype or activations, workload.quantised)


def is_layer(model: ModelGraph, block: str) -> bool:
    """Return True if a block is a layer in the sense of an engine's pipeline, not the embedding or the head."""
    return not any(o.kind in (OperatorKind.EMBEDDING, OperatorKind.LOSS) for o in model.block(block).operators)


def pipeline_stages(model: ModelGraph, pp: int) -> tuple[tuple[LayerSpan, ...], ...]:
    """Layers of each stage: shared evenly, what comes before and after them at the ends.

    Layers left over go one each to the stages before the last, from the back (vLLM, get_pp_indices).
    """
    layers = model.layers
    of_layers = {name for name in set(layers) if is_layer(model, name)}
    counted = [i for i, name in enumerate(layers) if name in of_layers]
    share, rest = divmod(len(counted), pp)
    counts = [share + (1 if pp - 1 - rest <= stage < pp - 1 else 0) for stage in range(pp)]
    firsts = [0]
    for count in counts[:-1]:
        firsts.append(firsts[-1] + count)
    starts = [0, *(counted[first] for first in firsts[1:]), len(layers)]
    return tuple(_spans(layers, starts[stage], starts[stage + 1]) for stage in range(pp))


def _spans(layers: tuple[str, ...], start: int, end: int) -> tuple[LayerSpan, ...]:
    spans: list[LayerSpan] = []
    for i in range(start, end):
        if spans and spans[-1].block == layers[i]:
            spans[-1] = LayerSpan(layers[i], spans[-1].first, spans[-1].count + 1)
        else:
            spans.append(LayerSpan(layers[i], i, 1))
    return tuple(spans)


# The rank grids that a serving engine can run for a model, by its rules in `solver.problem.launchers`.

FP8_BLOCK = 128
"""Side of the blocks that share a scale in block fp8 checkpoints: a rank holds whole blocks (vLLM, Fp8LinearMethod)."""


@dataclass(frozen=True, slots=True)
class ServedShape:
    """Sizes of a model that engines have rules for.

    heads, kv_heads   of attention; latent attention has one key/value head
    experts           routed experts of a layer, 0 without; ``expert_ffn`` their width
    states            whether layers keep recurrent states
    block             columns that a rank's share of an expert must be a multiple of
    """

    heads: int
    kv_heads: int
    experts: int
    expert_ffn: int
    states: bool
    block: int


def served_shape(model: ModelGraph, weights: WeightFormat) -> ServedShape:
    """The shape of a model with weights in a format."""
    kinds = {operator.kind for block in model.blocks for operator in block.operators}
    latent = any(latent_expansion(block.operators) is not None for block in model.blocks)
    heads = model.dims.get(HEADS, 1)
    return ServedShape(
        heads=heads,
        kv_heads=1 if latent else model.dims.get(KV_HEADS, heads),
        experts=model.dims.get(EXPERTS, 0),
        expert_ffn=model.dims.get(EXPERT_FFN, 0),
        states=OperatorKind.SCAN in kinds,
        block=FP8_BLOCK if weights is WeightFormat.FP8_BLOCK else 1,
    )


def runs(engine: ServingEngine, grid: RankGrid, shape: ServedShape) -> bool:
    """Return True if an engine runs a grid that divides the model evenly."""
    if not shape.experts:
        # Attention groups of a dense model are replicas, which are counted as such.
        if grid.attention_dp > 1 or grid.ep > 1:
            return False
    elif shape.expert_ffn // grid.expert_tp % shape.block:
        return False
    if grid.cp > 1 and not _shares_prompts(engine, grid, shape):
        return False
    facts = ENGINES[engine]
    if not facts.spreads_over_some and grid.ep not in (1, grid.ranks):
        return False
    if not facts.groups_of_several_ranks and grid.attention_dp > 1 and grid.dense_tp > 1:
        return False
    return grid.kvp == 1 or (facts.splits_caches and _splits_caches(grid, shape))


def _shares_prompts(engine: ServingEngine, grid: RankGrid, shape: ServedShape) -> bool:
    match ENGINES[engine].prompt_sharing:
        case PromptSharing.NONE:
            return False
        case PromptSharing.WITHOUT_STATES:
            return grid.kvp == 1 and not shape.states


def _splits_caches(grid: RankGrid, shape: ServedShape) -> bool:
    """Return True if KV parallelism saves anything: heads are split as far as they go, and no further (Helix, TPA <= K)."""
    per_kv_head = shape.heads // shape.kv_heads
    return grid.attention_dp == 1 and grid.tp == shape.kv_heads and per_kv_head % grid.kvp == 0 and not shape.states


def holds_copies(grid: RankGrid, *, experts: int, copies: int) -> bool:
    """Return True if copies of hot experts lie evenly on the groups that hold whole experts (vLLM, --enable-eplb, goes with
    --enable-expert-parallel)."""
    return copies == 0 or (grid.ep > 1 and (experts + copies) % grid.ep == 0)


def require_served_model(request: ServingRequest) -> None:
    """Refuse a model that no layout can serve: by its routing, blocks or attention, or by degrees of cp that it can't have."""
    require_routable(request.model, request.workload.experts)
    if not request.model.is_chain:
        raise ModelError("only models whose blocks form a chain can be served", given=request.model.name)
    for block in request.model.blocks:
        for operator in block.operators:
            if operator.kind is OperatorKind.ATTENTION and operator.mask is AttentionMask.FULL:
                raise ModelError(
                    "only causal attention can generate token by token",
                    given=f"{block.name}/{operator.name}: full",
                    remedy="of an encoder (embeddings, reranking) training is planned; serving it is not",
                )
    _require_prefill_layout(request)


def _require_prefill_layout(request: ServingRequest) -> None:
    """Refuse degrees of cp that no prefill worker can have."""
    cp = request.search.cp
    if cp and 1 not in cp and next(layouts(request, Tokens.SHARED), None) is None:
        raise WorkloadError(
            "no worker shares prompts over so many ranks",
            given=f"search.cp {list(cp)} with search.engine {request.search.engine.value}",
            allowed="1; of search.engine sglang divisors of a node, for models without recurrent states",
        )


def require_routable(model: ModelGraph, routing: ExpertRouting) -> None:
    """Refuse a routing that is not of this model: of a model without experts, or counts of another number of them."""
    experts = model.dims.get(EXPERTS, 0)
    if not experts and routing != BALANCED:
        raise WorkloadError("the model has no experts to route to", given=model.name, remedy="leave out workload.experts")
    if isinstance(routing, HistogramRouting) and len(routing.counts) != experts:
        raise WorkloadError("the routing histogram is not of this model", given=len(routing.counts), allowed=str(experts))
