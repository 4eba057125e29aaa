"""Degrees of serving workers: what divides, what the search, the engine and the launcher allow."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.costmodels.model.dims import (
    EXPERT_FFN,
    EXPERTS,
    FFN,
    HEADS,
    KV_HEADS,
    SHARED_FFN,
    SSM_GROUPS,
    SSM_HEADS,
    SSM_INNER,
)
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.model.weight_format import WeightFormat
from meshwright.solver.answer.axes import Axes
from meshwright.solver.answer.workers import Workers
from meshwright.solver.problem.choices import Launcher, Space
from meshwright.solver.problem.launchers.server import PromptSharing
from meshwright.solver.problem.launchers.servers import ENGINES, SERVERS
from meshwright.solver.problem.request import ServingRequest
from meshwright.solver.verify.rules.devices import devices_by_group
from meshwright.solver.verify.rules.parameters import picked_dims
from meshwright.solver.verify.serving.cache import cached_heads
from meshwright.solver.verify.violation import Rule, Violation

_ORDERED = (OperatorKind.SCAN, OperatorKind.CONVOLUTION)


def stage_ranks(axes: Axes) -> int:
    """Ranks of a pipeline stage."""
    return axes.tp * axes.kvp * axes.cp * axes.attention_dp


def division_violations(axes: Axes, request: ServingRequest) -> Iterator[Violation]:
    """Heads, columns and experts divide evenly; few key/value heads are copied; the vocabulary is padded."""
    dims = request.model.dims
    if min(axes.tp, axes.kvp, axes.cp, axes.attention_dp, axes.ep) < 1:
        return
    dense, ranks = axes.tp * axes.kvp, stage_ranks(axes)
    over_ranks = f"tp {axes.tp}" + (f" x kvp {axes.kvp}" if axes.kvp > 1 else "")
    for dim in (HEADS, FFN, SHARED_FFN, SSM_HEADS, SSM_INNER):
        if dims.get(dim, dense) % dense:
            yield Violation(Rule.DIVISIBILITY, "plan.axes.tp", f"{dim} {dims[dim]} does not divide by {over_ranks}")
    for dim, over in ((KV_HEADS, axes.tp), (KV_HEADS, dense), (SSM_GROUPS, dense)):
        have = dims.get(dim, over)
        if have % over and over % have:
            given = f"{have} {dim} neither divide by {over} ranks nor can be copied evenly to them"
            yield Violation(Rule.DIVISIBILITY, "plan.axes.tp", given)
            break
    has_experts = any(picked_dims(operator) for block in request.model.blocks for operator in block.operators)
    if not has_experts and max(axes.ep, axes.attention_dp) > 1:
        yield Violation(Rule.AXES, "plan.axes", f"{axes}, and the model has no experts: ep and attention_dp are 1")
    elif ranks % axes.ep:
        yield Violation(Rule.AXES, "plan.axes.ep", f"{axes.ep} does not divide the {ranks} ranks of a stage")
    elif has_experts:
        yield from _expert_division_violations(axes, request, ranks)


def _expert_division_violations(axes: Axes, request: ServingRequest, ranks: int) -> Iterator[Violation]:
    dims, workload = request.model.dims, request.workload
    slots, split = dims[EXPERTS] + workload.experts.redundant_experts, ranks // axes.ep
    if slots % axes.ep:
        yield Violation(Rule.DIVISIBILITY, "plan.axes.ep", f"{slots} experts and copies do not divide by ep {axes.ep}")
    width = dims.get(EXPERT_FFN, split)
    # Block fp8 checkpoints scale 128 columns together: a rank holds whole blocks.
    unit = split * (128 if workload.weight_format is WeightFormat.FP8_BLOCK else 1)
    if width % unit:
        yield Violation(Rule.DIVISIBILITY, "plan.axes.ep", f"experts of width {width} do not divide into units of {unit}")


def restriction_violations(axes: Axes, request: ServingRequest) -> Iterator[Violation]:
    """The degrees, the engine and the launcher that the search allows."""
    search = request.search
    restricted = (
        ("tp", axes.tp, search.tp),
        ("pp", axes.pp, search.pp),
        ("ep", axes.ep, search.ep),
        ("attention_dp", axes.attention_dp, search.attention_dp),
        ("kvp", axes.kvp, search.kvp),
    )
    for name, value, allowed in restricted:
        if allowed and value not in allowed:
            yield Violation(Rule.SEARCH, f"plan.axes.{name}", f"{value}, the request allows {allowed}")
    ranks = stage_ranks(axes)
    if not ENGINES[search.engine].spreads_over_some and axes.ep not in (1, ranks):
        given = f"{axes.ep}; {search.engine.value} spreads experts over all {ranks} ranks or none"
        yield Violation(Rule.LAUNCHER, "plan.axes.ep", given)
    if axes.kvp > 1:
        yield from _kvp_violations(axes, request)
    trains_only = search.launcher not in (*SERVERS, Launcher.MEGATRON_LM)
    if search.space is Space.LAUNCHABLE and trains_only:
        # Megatron-LM is the default of a request that names no launcher.
        yield Violation(Rule.LAUNCHER, "request.search.launcher", f"{search.launcher.value} does not serve")


def _kvp_violations(axes: Axes, request: ServingRequest) -> Iterator[Violation]:
    """vLLM, decode context parallelism: the tensor-parallel ranks outnumber the key/value heads kvp times over."""
    heads = cached_heads(request)
    engine = request.search.engine
    if not ENGINES[engine].splits_caches:
        yield Violation(Rule.LAUNCHER, "plan.axes.kvp", f"{axes.kvp}; {engine.value} does not split a cache along the sequence")
    if axes.tp < heads:
        given = f"{axes.kvp} at tp {axes.tp}: the {heads} key/value heads are split first"
        yield Violation(Rule.DIVISIBILITY, "plan.axes.kvp", given)


def shared_prompt_violations(workers: Workers, request: ServingRequest) -> Iterator[Violation]:
    """SGLang's prefill context parallelism (--enable-prefill-cp): inside a node, of attention without recurrent states, caches
    whole on every rank."""
    axes = workers.axes
    if axes.cp == 1:
        return
    if ENGINES[request.search.engine].prompt_sharing is PromptSharing.NONE:
        given = f"{axes.cp}; of {request.search.engine.value} no worker shares the tokens of a prompt"
        yield Violation(Rule.LAUNCHER, "plan.axes.cp", given)
    states = [b.name for b in request.model.blocks if any(o.kind in _ORDERED for o in b.operators)]
    if states or axes.kvp > 1 or axes.pp > 1:
        given = f"{axes}: neither recurrent states ({', '.join(states) or 'none'}) nor kvp or pp go with it"
        yield Violation(Rule.AXES, "plan.axes.cp", given)
    smallest = min((g.node.devices_per_node for g, _ in devices_by_group(request.cluster, workers.device_ranges)), default=0)
    if stage_ranks(axes) > smallest:
        yield Violation(Rule.DEVICES, "plan.axes.cp", f"{stage_ranks(axes)} ranks of a stage, a node has {smallest} devices")


def whole_prompt_violations(axes: Axes) -> Iterator[Violation]:
    """Workers that only decode do not share the tokens of prompts."""
    if axes.cp != 1:
        given = f"{axes.cp}; only workers that compute prompts share their tokens"
        yield Violation(Rule.AXES, "plan.axes.cp", given)
