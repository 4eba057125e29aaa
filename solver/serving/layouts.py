"""The space of serving layouts: one node group, tp inside a node, pp stages, and the engine's batch limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from costmodels.cluster import NodeGroup
from costmodels.errors import ModelError, WorkloadError
from costmodels.inference import ServingPrecision
from costmodels.operators import OperatorKind
from costmodels.tensor_parallel import divides
from costmodels.units import DType
from solver.graph import ModelGraph
from solver.plan import LayerSpan
from solver.request import ClosedArrivals, Launcher, Objective, PlanRequest, Search, ServingWorkload, Space

PIPELINE_DEGREES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)

STEP_TOKENS = (512, 1024, 2048, 4096, 8192, 16384)
"""Token limits of a step: powers of two around the defaults of vLLM (2048 to 8192, by version and device)."""

SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Limits of sequences at once: powers of two up to twice the default of vLLM (256)."""

SPACE = (
    f"replicas in one node group, tp inside a node, pp in {{{', '.join(map(str, PIPELINE_DEGREES))}}}, "
    f"steps of {STEP_TOKENS[0]} to {STEP_TOKENS[-1]} tokens and {SEQUENCES[0]} to {SEQUENCES[-1]} sequences (powers of two), "
    "chunked prefill, requests split evenly at random"
)


@dataclass(frozen=True, slots=True)
class Layout:
    """A replica: tp x pp devices of one node group, whose ranks start at ``first_rank``."""

    group: NodeGroup
    first_rank: int
    tp: int
    pp: int

    @property
    def devices(self) -> int:
        """Devices of a replica."""
        return self.tp * self.pp

    @property
    def most_replicas(self) -> int:
        """Replicas that the node group has room for."""
        return self.group.n_devices // self.devices

    @property
    def name(self) -> str:
        """Words for people: "tp 4" or "tp 8 x pp 2"."""
        return f"tp {self.tp}" + (f" x pp {self.pp}" if self.pp > 1 else "")


def layouts(request: PlanRequest) -> Iterator[Layout]:
    """Every layout of the space that divides the model, in canonical order.

    Ranks of a replica are consecutive; tp divides the devices of a node, so a tp group never leaves it.
    """
    search, model = request.search, request.model
    first = 0
    n_layers = sum(1 for name in model.layers if is_attention_layer(model, name))
    for group in request.cluster.groups:
        per_node = group.node.devices_per_node if has_format(group, request) else 0
        for tp in range(1, per_node + 1):
            if per_node % tp or not divides(model.dims, tp) or (search.tp and tp not in search.tp):
                continue
            for pp in PIPELINE_DEGREES:
                allowed = not search.pp or pp in search.pp
                if allowed and pp <= max(1, n_layers) and tp * pp <= group.n_devices:
                    yield Layout(group, first, tp, pp)
        first += group.n_devices


def has_format(group: NodeGroup, request: PlanRequest) -> bool:
    """Whether the group's device computes in the formats that the workload needs."""
    assert isinstance(request.workload, ServingWorkload)
    precision = serving_precision(request.workload)
    return {precision.weights, precision.activations} <= set(group.node.device.peak_flops)


def serving_precision(workload: ServingWorkload) -> ServingPrecision:
    """Formats of a workload: what is not quantised stays in 16 bits, the cache too unless its format is named (vLLM,
    --kv-cache-dtype auto)."""
    activations = DType.BF16 if workload.precision is DType.FP8 else workload.precision
    return ServingPrecision(workload.precision, activations, workload.kv_dtype or activations)


def require_servable(request: PlanRequest) -> None:
    """Refuse what no layout of this space can mean, before any search.

    Raises WorkloadError for search restrictions and objectives of training, ModelError for models this space can't serve,
    ClusterError when no device of the cluster computes in the workload's precision.
    """
    if not any(has_format(group, request) for group in request.cluster.groups):
        assert isinstance(request.workload, ServingWorkload)
        request.cluster.groups[0].node.device.peak(request.workload.precision)
        request.cluster.groups[0].node.device.peak(serving_precision(request.workload).activations)
    if request.objective is Objective.STEP_TIME:
        raise WorkloadError(
            "the objective does not go with a serving workload",
            given=request.objective.value,
            allowed=", ".join(o.value for o in (Objective.DEVICES, Objective.THROUGHPUT, Objective.COST)),
        )
    assert isinstance(request.workload, ServingWorkload)
    if request.objective is Objective.THROUGHPUT and isinstance(request.workload.arrivals, ClosedArrivals):
        raise WorkloadError(
            "the objective does not go with clients in a closed loop, whose number is given",
            given=request.objective.value,
            allowed=f"{Objective.DEVICES.value}, {Objective.COST.value}",
        )
    _require_serving_search(request.search)
    if not request.model.is_chain:
        raise ModelError("only models whose blocks form a chain can be served", given=request.model.name)
    for block in request.model.blocks:
        for operator in block.operators:
            if operator.kind is OperatorKind.ATTENTION and operator.mask is not None and operator.mask.value != "causal":
                raise ModelError(
                    "only causal attention can generate token by token",
                    given=f"{block.name}/{operator.name}: {operator.mask.value}",
                )


def _require_serving_search(search: Search) -> None:
    set_for_training = {
        "cp": search.cp and 1 not in search.cp,
        "microbatch": search.microbatch,
        "recompute": search.recompute,
        "zero_stages": search.zero_stages,
    }
    given = [name for name, value in set_for_training.items() if value]
    if given:
        raise WorkloadError(
            "search restrictions of training do not go with a serving workload", given=given, allowed="dp (replicas), tp, pp"
        )
    # Megatron-LM is the default of a request that names no launcher.
    if search.space is Space.LAUNCHABLE and search.launcher not in (Launcher.VLLM, Launcher.MEGATRON_LM):
        raise WorkloadError("the launcher does not serve", given=search.launcher.value, allowed=Launcher.VLLM.value)


def is_attention_layer(model: ModelGraph, block: str) -> bool:
    """Whether a block is a layer in the sense of an engine's pipeline: it holds attention."""
    return any(operator.kind is OperatorKind.ATTENTION for operator in model.block(block).operators)


def pipeline_stages(model: ModelGraph, pp: int) -> tuple[tuple[LayerSpan, ...], ...]:
    """Layers of each stage: attention layers shared evenly, what comes before and after them at the ends.

    Layers left over go one each to the stages before the last, from the back (vLLM, get_pp_indices).
    """
    layers = model.layers
    attention = [i for i, name in enumerate(layers) if is_attention_layer(model, name)]
    share, rest = divmod(len(attention), pp)
    counts = [share + (1 if pp - 1 - rest <= stage < pp - 1 else 0) for stage in range(pp)]
    firsts = [0]
    for count in counts[:-1]:
        firsts.append(firsts[-1] + count)
    starts = [0, *(attention[first] for first in firsts[1:]), len(layers)]
    return tuple(_spans(layers, starts[stage], starts[stage + 1]) for stage in range(pp))


def _spans(layers: tuple[str, ...], start: int, end: int) -> tuple[LayerSpan, ...]:
    spans: list[LayerSpan] = []
    for i in range(start, end):
        if spans and spans[-1].block == layers[i]:
            spans[-1] = LayerSpan(layers[i], spans[-1].first, spans[-1].count + 1)
        else:
            spans.append(LayerSpan(layers[i], i, 1))
    return tuple(spans)
