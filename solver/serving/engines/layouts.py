"""The space of serving layouts: one node group, the ranks of a stage, pp stages, and the engine's batch limits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from meshwright.costmodels.cluster.cluster import NodeGroup
from meshwright.costmodels.errors import ModelError, WorkloadError
from meshwright.costmodels.model.operators import AttentionMask, OperatorKind
from meshwright.costmodels.model.split_dims import RankGrid, divides
from meshwright.costmodels.serving.step_time import ServingPrecision
from meshwright.costmodels.units import DType
from meshwright.solver.answer.stage import LayerSpan
from meshwright.solver.problem.choices import DEFAULT_LAUNCHER, FrontierScope, Objective, ServingMode, Space
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.launchers.server import PromptSharing
from meshwright.solver.problem.launchers.table import ENGINES, SERVERS
from meshwright.solver.problem.request import ServingRequest, ServingWorkload
from meshwright.solver.problem.search import Search
from meshwright.solver.problem.serving_load import ClosedArrivals, PoissonArrivals
from meshwright.solver.serving.engines.engine_rules import holds_copies, require_routable, runs, served_shape
from meshwright.solver.serving.engines.switched_rules import require_switchable

PIPELINE_DEGREES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)

STEP_TOKENS = (512, 1024, 2048, 4096, 8192, 16384)
"""Token limits of a step: powers of two around the defaults of vLLM (2048 to 8192, by version and device)."""

SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Limits of sequences at once: powers of two up to twice the default of vLLM (256)."""


SPACE = (
    f"replicas in one node group, tp x kvp inside a node, pp in {{{', '.join(map(str, PIPELINE_DEGREES))}}}, attention "
    "groups (without pp) and experts over whole nodes, either attention groups or kvp, "
    f"steps of {STEP_TOKENS[0]} to {STEP_TOKENS[-1]} tokens and {SEQUENCES[0]} to {SEQUENCES[-1]} sequences (powers of two), "
    "chunked prefill, requests split evenly at random"
)


class Work(StrEnum):
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
    work: Work = field(default=Work.BOTH, kw_only=True)

    @property
    def repeats_answers(self) -> bool:
        """True if ranks that share prompts decode, all of them the same tokens."""
        return self.grid.cp > 1 and self.work is Work.BOTH

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
    def key(self) -> tuple[str | int, ...]:
        """The key that tells the layouts of a request apart; also their canonical order."""
        grid = self.grid
        return self.group.name, grid.tp, self.pp, grid.kvp, grid.attention_dp, grid.ep, grid.cp


class Tokens(StrEnum):
    """The split of the tokens of a step: one group of dense ranks runs them all, or several share those of prompts (cp)."""

    WHOLE = "whole"
    SHARED = "shared"


def prefill_layouts(request: ServingRequest) -> Iterator[Layout]:
    """Layouts of prefill workers: those of all workers, then those whose ranks share the tokens of prompts."""
    if not request.search.cp or 1 in request.search.cp:
        yield from layouts(request)
    yield from layouts(request, Tokens.SHARED)


def worker_layouts(request: ServingRequest) -> Iterator[Layout]:
    """Layouts of workers that do both phases: those whose ranks share prompts where ``search.cp`` names their degree."""
    yield from layouts(request)
    asked = ServingMode.AGGREGATED in request.search.modes and max(request.search.cp, default=1) > 1
    if asked and request.workload.speculation is None:
        yield from (replace(layout, work=Work.BOTH) for layout in layouts(request, Tokens.SHARED))


def layouts(request: ServingRequest, tokens: Tokens = Tokens.WHOLE) -> Iterator[Layout]:
    """Every layout of the space that divides the model, in canonical order.

    Ranks of a replica are consecutive; tp x kvp divides the devices of a node, so such a group never leaves it, and a stage
    fills a part of a node or whole nodes.
    """
    search, model = request.search, request.model
    speculation = request.workload.speculation
    first, work = 0, Work.PROMPTS if tokens is Tokens.SHARED else Work.BOTH
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
    for tp, kvp in itertools.product(_divisors(per_node), repeat=2):
        if per_node % (tp * kvp):
            continue
        in_a_node = per_node // (tp * kvp)
        over_nodes = [in_a_node * nodes for nodes in range(2, group.nodes + 1)]
        groups = [(attention_dp, 1) for attention_dp in (*_divisors(in_a_node), *over_nodes)]
        if tokens is Tokens.SHARED:
            groups = [(a, cp) for a in _divisors(in_a_node) for cp in _divisors(in_a_node // a) if cp > 1]
        for attention_dp, cp in groups:
            for ep in _divisors(tp * kvp * attention_dp * cp):
                grid = RankGrid(tp=tp, kvp=kvp, attention_dp=attention_dp, ep=ep, cp=cp)
                if not (_allowed(grid, search) and divides(request.model.dims, grid) and runs(search.engine, grid, shape)):
                    continue
                if holds_copies(grid, experts=shape.experts, copies=workload.experts.redundant_experts):
                    yield grid


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


def serving_precision(workload: ServingWorkload) -> ServingPrecision:
    """Formats of a workload: what is not quantised stays in 16 bits, the cache too unless its format is named (vLLM,
    --kv-cache-dtype auto)."""
    activations = DType.FP16 if workload.precision is DType.FP16 else DType.BF16
    return ServingPrecision(workload.weight_format, activations, workload.kv_dtype or activations, workload.quantised)


def require_servable(request: ServingRequest) -> None:
    """Refuse what no layout of this space can mean, before any search.

    Raises WorkloadError for search restrictions and objectives of training, ModelError for models this space can't serve,
    ClusterError when no device of the cluster computes in the workload's precision.
    """
    if not any(has_format(group, request) for group in request.cluster.groups):
        device, precision = request.cluster.groups[0].node.device, serving_precision(request.workload)
        device.peak(precision.weights.computed_in(device))
        device.peak(precision.activations)
    if request.objective is Objective.STEP_TIME:
        raise WorkloadError(
            "the objective does not go with a serving workload",
            given=request.objective.value,
            allowed=", ".join(o.value for o in (Objective.DEVICES, Objective.THROUGHPUT, Objective.COST, Objective.ENERGY)),
        )
    if request.objective is Objective.THROUGHPUT and isinstance(request.workload.arrivals, ClosedArrivals):
        raise WorkloadError(
            "the objective does not go with clients in a closed loop, whose number is given",
            given=request.objective.value,
            allowed=f"{Objective.DEVICES.value}, {Objective.COST.value}, {Objective.ENERGY.value}",
        )
    if ServingMode.DISAGGREGATED in request.search.modes:
        _require_poolable(request)
    if request.search.worker_kinds > 1:
        _require_kinds(request)
    if ServingMode.SWITCHED in request.search.modes:
        require_switchable(request)
    _require_serving_search(request.search)
    if request.workload.speculation is not None:
        _require_speculative(request)
    require_routable(request.model, request.workload.experts)
    if not request.model.is_chain:
        raise ModelError("only models whose blocks form a chain can be served", given=request.model.name)
    for block in request.model.blocks:
        for operator in block.operators:
            if operator.kind is OperatorKind.ATTENTION and operator.mask is AttentionMask.FULL:
                raise ModelError(
                    "only causal attention can generate token by token",
                    given=f"{block.name}/{operator.name}: full",
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


def _require_speculative(request: ServingRequest) -> None:
    """Refuse what speculative decoding is not planned for."""
    search = request.search
    if ServingMode.DISAGGREGATED in search.modes:
        raise WorkloadError(
            "speculative decoding is planned for workers that do both phases",
            given=ServingMode.DISAGGREGATED.value,
            allowed="search.modes [aggregated]; or no workload.speculation",
        )
    if search.frontier is FrontierScope.SWEPT:
        raise WorkloadError(
            "throughput against interactivity is not drawn with speculative decoding",
            given=search.frontier.value,
            allowed=f"search.frontier {FrontierScope.VISITED.value}; or no workload.speculation",
        )
    if search.pp and 1 not in search.pp:
        raise WorkloadError(
            "speculative decoding is planned without pipeline stages, as vLLM runs it",
            given=f"search.pp {list(search.pp)}",
            allowed="search.pp with 1; or no workload.speculation",
        )
    if search.cp and 1 not in search.cp:
        raise WorkloadError(
            "speculative decoding is planned without ranks that share prompts",
            given=f"search.cp {list(search.cp)}",
            allowed="search.cp with 1; or no workload.speculation",
        )
    for block in request.model.blocks:
        for operator in block.operators:
            if operator.kind in (OperatorKind.SCAN, OperatorKind.CONVOLUTION):
                raise ModelError(
                    "speculative decoding is not planned for recurrent states, which rejected tokens would have to leave again",
                    given=f"{block.name}/{operator.name}",
                    allowed="models of attention alone; or no workload.speculation",
                )


def _require_poolable(request: ServingRequest) -> None:
    """Refuse what prefill and decode pools are not searched for."""
    arrivals = request.workload.arrivals
    if isinstance(arrivals, ClosedArrivals):
        raise WorkloadError(
            "clients in a closed loop are not simulated over prefill and decode pools",
            given=arrivals.process,
            allowed="poisson, gamma, trace; or search.modes [aggregated]",
        )
    if request.objective is Objective.THROUGHPUT and not isinstance(arrivals, PoissonArrivals):
        raise WorkloadError(
            "the goodput of prefill and decode pools is searched for Poisson arrivals only",
            given=arrivals.process,
            allowed="poisson; or search.modes [aggregated]; or another objective",
        )


def _require_kinds(request: ServingRequest) -> None:
    """Refuse what plans of several kinds of workers are not searched for."""
    search, workload = request.search, request.workload
    refused = (
        (not isinstance(workload.arrivals, PoissonArrivals), workload.arrivals.process, "poisson"),
        (request.objective is Objective.ENERGY, "objective energy", "devices, cost, throughput"),
        (ServingMode.AGGREGATED not in search.modes, "search.modes [disaggregated]", "search.modes with aggregated"),
        (search.frontier is FrontierScope.SWEPT, "search.frontier swept", FrontierScope.VISITED.value),
    )
    for is_so, given, allowed in refused:
        if is_so:
            raise WorkloadError(
                "plans of several kinds of workers are not searched for this",
                given=given,
                allowed=f"{allowed}; or search.worker_kinds 1",
            )


def _require_serving_search(search: Search) -> None:
    set_for_training = {
        "cp": search.cp and 1 not in search.cp and not _may_share_prompts(search),
        "microbatch": search.microbatch,
        "recompute": search.recompute,
        "zero_stages": search.zero_stages,
    }
    given = [name for name, value in set_for_training.items() if value]
    if given:
        sharing = ", ".join(engine for engine, rules in ENGINES.items() if rules.prompt_sharing is not PromptSharing.NONE)
        raise WorkloadError(
            "search restrictions of training do not go with a serving workload",
            given=given,
            allowed=f"dp (replicas), tp, pp, ep, attention_dp, kvp; cp of engine {sharing} or of prefill workers",
        )
    if search.space is Space.LAUNCHABLE and search.launcher not in (*SERVERS, DEFAULT_LAUNCHER):
        raise WorkloadError(
            "the launcher does not serve", given=search.launcher.value, allowed=", ".join(server.value for server in SERVERS)
        )


def _may_share_prompts(search: Search) -> bool:
    return ServingMode.DISAGGREGATED in search.modes or ENGINES[search.engine].prompt_sharing is not PromptSharing.NONE


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
