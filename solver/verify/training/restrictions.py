"""The rules on what the request allows, and on what its launcher can start."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from meshwright.costmodels.model.dims import EXPERTS, FFN, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, KV_RANK, VOCAB
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.units import DType
from meshwright.solver.answer.pipeline_plan import PipelinePlan
from meshwright.solver.problem.choices import Gradients, Recompute, Space, System
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.launchers.trainers import TRAINERS, GptLayers, HostState, LlamaLayers, Trainer
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.verify.documents import adapter_violations, document_violations
from meshwright.solver.verify.rules import picked_dims
from meshwright.solver.verify.training.choice_rules import (
    asked_of_pipelines,
    asked_of_stage,
    gathers_keys,
    launcher_refusals,
    published_refusals,
    stage_refusals,
)
from meshwright.solver.verify.training.schedule import reading
from meshwright.solver.verify.training.stage_bytes import is_of_module
from meshwright.solver.verify.violation import Rule, Violation

_NONE_OR_FULL = (Recompute.NONE, Recompute.FULL)
_SYSTEMS: dict[System, tuple[tuple[int, ...], tuple[Recompute, ...], bool]] = {
    System.PIPER: ((0,), _NONE_OR_FULL, False),
    System.ALPA: ((0, 2, 3), _NONE_OR_FULL, False),
    System.GALVATRON: ((0, 3), _NONE_OR_FULL, False),
    System.AMP: ((0,), (Recompute.NONE,), False),
    System.COLOSSAL_AI: ((0,), _NONE_OR_FULL, True),
    System.MERAK: ((0,), _NONE_OR_FULL, False),
    System.METIS: ((0,), (Recompute.NONE,), False),
    System.MIST: ((0, 1, 2, 3), _NONE_OR_FULL, True),
    System.ACESO: ((0,), tuple(Recompute), False),
    System.NNSCALER: ((0, 1), _NONE_OR_FULL, False),
    System.FLEXFLOW: ((0,), (Recompute.NONE,), False),
    System.TOFU: ((0,), (Recompute.NONE,), False),
    System.SUPERSCALER: ((0,), _NONE_OR_FULL, False),
}
"""ZeRO stages, recompute modes and sequence parallelism that published planners search."""

_WITHOUT_PIPELINES = (System.FLEXFLOW, System.TOFU)


def restriction_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Degrees and memory choices outside ``request.search``; in the launchable space, what the launcher can't start."""
    yield from _search_violations(plan, request)
    yield from _system_violations(plan, request)
    yield from _release_violations(plan)
    yield from adapter_violations(plan, request)
    yield from document_violations(plan, request)
    if _uses_muon(plan, request) and any(stage.offload.optimizer for stage in plan.stages):
        yield Violation(Rule.SEARCH, "plan.stages", "states of Muon on the host, whose cores are too slow for its products")
    if request.search.space is Space.LAUNCHABLE:
        yield from _launcher_violations(plan, request)


def _search_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    search, axes, microbatch = request.search, plan.axes, plan.microbatch
    choices: list[tuple[str, object, Collection[object]]] = [
        ("dp", axes.dp, search.dp),
        ("tp", axes.tp, search.tp),
        ("pp", axes.pp, search.pp),
        ("cp", axes.cp, search.cp),
        ("ep", axes.ep, search.ep),
        ("ulysses", axes.ulysses, search.ulysses),
        ("microbatch", microbatch.size, search.microbatch),
    ]
    if axes.etp is not None or _has_experts(request):
        choices.append(("etp", axes.tp if axes.etp is None else axes.etp, search.etp or (axes.tp, 1)))
    own = request.workload.optimizer
    choices.append(("optimizer", own if plan.optimizer is None else plan.optimizer, search.optimizers or (own,)))
    choices += asked_of_pipelines(plan, request)
    if axes.pp > 1:
        choices.append(("schedule", plan.schedule, search.schedules))
        chunks = len(plan.stages[0].chunk_layers)
        if chunks > 1 and reading(plan).copies == 1:
            choices.append(("stages[0].chunk_layers", chunks, search.virtual_stages))
    for index, stage in enumerate(plan.stages):
        choices.append((f"stages[{index}].recompute", stage.recompute, search.recompute))
        choices += asked_of_stage(stage, f"stages[{index}]", request)
        choices.append((f"stages[{index}].zero_stage", stage.zero_stage, search.zero_stages))
        if stage.shard_ranks is not None or (stage.zero_stage > 0 and axes.dp * axes.cp > 1):
            shards = stage.shard_ranks or axes.dp * axes.cp
            choices.append((f"stages[{index}].shard_ranks", shards, search.shard_ranks))
        choices.append((f"stages[{index}].gradients", stage.gradients, search.gradients or (Gradients.KEPT,)))
        moved = stage.offload
        choices.append((f"stages[{index}].offload.optimizer", moved.optimizer, search.offload_optimizer or (0.0,)))
        choices.append((f"stages[{index}].offload.activations", moved.activations, search.offload_activations or (0.0,)))
        choices.append((f"stages[{index}].offload.weights", moved.weights, search.offload_weights or (0.0,)))
        choices.append((f"stages[{index}].offload.gradients", moved.gradients, search.offload_gradients or (0.0,)))
        for name, gone, place, tiers in (
            ("optimizer_to", moved.optimizer, moved.optimizer_to, search.offload_optimizer_to),
            ("weights_to", moved.weights, moved.weights_to, search.offload_weights_to),
        ):
            named = [tier.value for tier in tiers] if tiers and gone else ["host"]
            choices.append((f"stages[{index}].offload.{name}", place.value, named))
    for name, value, allowed in choices:
        if allowed and value not in allowed:
            listed = ", ".join(str(item) for item in allowed)
            yield Violation(Rule.SEARCH, f"plan.{name}", f"{value}, the request allows {listed}")


def _release_violations(plan: PipelinePlan) -> Iterator[Violation]:
    """A gradient that is gone with its layer's update can't be added to, nor wait for the host."""
    for index, stage in enumerate(plan.stages):
        if stage.gradients is not Gradients.RELEASED:
            continue
        where = f"plan.stages[{index}].gradients"
        if plan.microbatch.count > 1:
            yield Violation(Rule.GRADIENTS, where, f"released, in a step that sums {plan.microbatch.count} micro-batches")
        if stage.offload.optimizer or stage.offload.gradients:
            yield Violation(
                Rule.GRADIENTS, where, "released, while the host holds a share of them or of the optimizer's states"
            )


def _system_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    """Choices that the planner whose space was asked for does not have; none of them has cp, ep or other schedules."""
    system, axes = request.search.system, plan.axes
    if system is None:
        return
    zero, recompute, sequence_parallel = _SYSTEMS[system]
    broken = [
        (axes.cp > 1 or axes.ep > 1 or axes.etp is not None, "axes", f"cp {axes.cp}, ep {axes.ep}"),
        (plan.schedule != "1f1b", "schedule", plan.schedule),
        (axes.pp > 1 and system in _WITHOUT_PIPELINES, "axes", f"pp {axes.pp}"),
        *published_refusals(plan),
        (plan.optimizer not in (None, request.workload.optimizer), "optimizer", "optimizers"),
        (plan.sequence_parallel and not sequence_parallel, "sequence_parallel", "norms sharded over the sequence"),
    ]
    for index, stage in enumerate(plan.stages):
        hybrid = f"sharding within {stage.shard_ranks} ranks"
        broken.append((stage.shard_ranks is not None, f"stages[{index}].shard_ranks", hybrid))
        moved = stage.offload
        away = bool(moved.optimizer or moved.activations or moved.weights or moved.gradients)
        broken.append((away, f"stages[{index}].offload", "state or activations in host memory"))
        released = stage.gradients is Gradients.RELEASED
        broken.append((released, f"stages[{index}].gradients", "gradients released layer by layer"))
        broken.append((stage.zero_stage not in zero, f"stages[{index}].zero_stage", str(stage.zero_stage)))
        broken.append((stage.recompute not in recompute, f"stages[{index}].recompute", stage.recompute.value))
    for is_broken, where, given in broken:
        if is_broken:
            yield Violation(Rule.SEARCH, f"plan.{where}", f"{system.value} does not search {given}")


def _launcher_violations(plan: PipelinePlan, request: TrainingRequest) -> Iterator[Violation]:
    launcher, axes = request.search.launcher, plan.axes
    limits = TRAINERS.get(launcher)
    if limits is None:
        yield Violation(Rule.LAUNCHER, "request.search.launcher", f"{launcher.value} does not train")
        return
    zero = max(stage.zero_stage for stage in plan.stages)
    kv_heads = _kv_heads(request)
    broken = [
        (
            axes.pp > 1 and zero > limits.max_zero_with_pipeline,
            "zero_stage",
            f"ZeRO {zero} beside pp {axes.pp}; at most {limits.max_zero_with_pipeline}",
        ),
        (
            _uses_muon(plan, request) and zero > limits.max_zero_with_muon,
            "zero_stage",
            f"ZeRO {zero} beside the optimizer muon; at most {limits.max_zero_with_muon}",
        ),
        (
            zero not in limits.zero_stages,
            "zero_stage",
            f"ZeRO {zero}; it has {', '.join(map(str, sorted(limits.zero_stages)))}",
        ),
        (
            axes.cp > 1 and zero not in limits.zero_beside_cp,
            "zero_stage",
            f"ZeRO {zero} beside cp {axes.cp}, whose ranks share out the weights",
        ),
        *_mesh_refusals(plan, request, limits),
        (
            limits.equal_nodes and _nodes_differ(plan.devices, request, limits.on_one_node),
            "devices",
            "nodes that are not equal"
            + (f", or up to {limits.on_one_node} devices on several" if limits.on_one_node > 1 else ""),
        ),
        *_border_refusals(plan, request, limits),
        (axes.tp > 1 and not limits.tensor_parallel, "axes.tp", f"tp {axes.tp}; it has no tensor parallelism"),
        (axes.cp > 1 and not limits.context_parallel, "axes.cp", f"cp {axes.cp}; it has no ring context parallelism"),
        (axes.ulysses > 1 and not limits.head_exchange, "axes.ulysses", "it exchanges no heads between ranks of a sequence"),
        (
            axes.cp > axes.ulysses and not (gathers_keys(plan) or limits.windows_in_rings) and _has_window(request),
            "axes.cp",
            "a ring can't run attention with a sliding window; gather keys, or exchange heads on all cp ranks",
        ),
        (
            (axes.ep > 1 or axes.etp is not None) and not limits.expert_parallel,
            "axes.ep",
            f"ep {axes.ep}; it can't spread these experts",
        ),
        (
            plan.sequence_parallel and not limits.sequence_parallel,
            "sequence_parallel",
            "it can't split norms over the sequence",
        ),
        (
            kv_heads is not None and kv_heads % axes.tp != 0 and not limits.replicates_kv_heads,
            "axes.tp",
            f"{kv_heads} key/value heads do not divide by tp {axes.tp}",
        ),
        (
            axes.pp > 1 and bool(request.model.tied_weights()) and not limits.ties_across_stages,
            "axes.pp",
            "it can't tie weights of two stages",
        ),
        (
            limits.experts_ask_for_sp and axes.tp > 1 and not plan.sequence_parallel and _has_experts(request),
            "sequence_parallel",
            f"experts beside tp {axes.tp} need it",
        ),
        *launcher_refusals(plan, launcher),
        (
            axes.pp > 1 and plan.schedule not in sorted(limits.schedules),
            "schedule",
            f"{plan.schedule}; it has {', '.join(sorted(limits.schedules)) or 'no pipelines'}",
        ),
        (
            axes.pp > 1 and plan.schedule == "1f1b" and not limits.short_1f1b and _microbatches(plan) < axes.pp,
            "microbatch",
            f"{_microbatches(plan)} micro-batches in 1F1B over {axes.pp} stages; it wants as many",
        ),
        (
            not limits.fine_grained and any(stage.recompute is Recompute.FINE_GRAINED for stage in plan.stages),
            "stages",
            "fine-grained recompute; it can't recompute norms alone",
        ),
        (
            not limits.selective and any(stage.recompute is Recompute.SELECTIVE for stage in plan.stages),
            "stages",
            "selective recompute; it recomputes whole layers",
        ),
        *stage_refusals(plan, launcher),
        (
            any(stage.shard_ranks is not None and stage.zero_stage not in limits.zero_within_groups for stage in plan.stages),
            "stages",
            f"ZeRO-{zero} within a part of dp x cp; it has such groups for ZeRO "
            f"{', '.join(map(str, sorted(limits.zero_within_groups))) or 'of no stage'}",
        ),
        *_model_refusals(request, limits),
        *_optimizer_refusals(plan, request, limits),
        *_offload_refusals(plan, limits),
        (
            any(stage.gradients is Gradients.RELEASED for stage in plan.stages),
            "stages",
            "gradients released in the backward pass; it updates after it",
        ),
        (len({stage.recompute for stage in plan.stages}) > 1, "stages", "it has one recompute mode for all stages"),
        (len({stage.zero_stage for stage in plan.stages}) > 1, "stages", "it has one ZeRO stage for all stages"),
    ]
    for is_broken, where, message in broken:
        if is_broken:
            yield Violation(Rule.LAUNCHER, f"plan.{where}", f"{launcher.value}: {message}")


def _nodes_differ(devices: int, request: TrainingRequest, on_one_node: int) -> bool:
    """Return True where a launcher that counts ranks alone would be wrong about the nodes on which the plan's devices lie."""
    used: list[int] = []
    for group in request.cluster.groups:
        whole, rest = divmod(group.node.devices_per_node, group.node.host_devices)
        used += ([group.node.host_devices] * whole + [rest] * bool(rest)) * group.nodes
    firsts = itertools.accumulate(used, initial=0)
    held = {min(count, devices - first) for first, count in zip(firsts, used, strict=False) if first < devices}
    return held != {devices} if devices <= on_one_node else len(held) > 1


def _mesh_refusals(plan: PipelinePlan, request: TrainingRequest, limits: Trainer) -> Iterator[tuple[bool, str, str]]:
    """Groups of ranks and sizes that a launcher with one mesh of arrays can't cut: it lays axes over nodes and inside of them
    by whole factors, and gives each rank as many rows of a matrix."""
    if not limits.arrays_over_mesh:
        return
    per_node = next(group.node.host_devices for group in request.cluster.groups)
    hidden = request.model.dims[HIDDEN]
    for stage in plan.stages:
        tp, cp = stage.axes.tp, stage.axes.cp
        group = stage.shard_ranks or stage.axes.dp * cp
        parts = {"tp": tp, "tp x cp": tp * cp} | ({"tp x the ranks that shard": tp * group} if stage.zero_stage == 3 else {})
        for name, ranks in parts.items():
            crosses = max(ranks, per_node) % min(ranks, per_node) > 0
            yield crosses, "axes", f"{name} is {ranks} on nodes of {per_node}; groups fill nodes or divide them"
        yield hidden % tp > 0, "axes.tp", f"the width {hidden} does not divide by tp {tp}"
        message = f"the width {hidden} does not divide by the {group} ranks that shard"
        yield stage.zero_stage == 3 and hidden % group > 0, "zero_stage", message


def _border_refusals(plan: PipelinePlan, request: TrainingRequest, limits: Trainer) -> Iterator[tuple[bool, str, str]]:
    """Stages that are not those which the launcher cuts by itself."""
    pp = plan.axes.pp
    if limits.own_borders is None or pp == 1:
        return
    dims = request.model.dims
    layer = (4 * dims[HEADS] * dims[HEAD_DIM] + 3 * dims[FFN]) * dims[HIDDEN] if {HEADS, HEAD_DIM, FFN} <= set(dims) else 0
    cut = (
        first_layers(len(request.model.layers) - 2, layer=layer, head=dims.get(VOCAB, 0) * dims[HIDDEN], pp=pp)
        if layer
        else None
    )
    firsts = tuple(min(span.first for span in stage.blocks) for stage in plan.stages)
    own = "no stages" if cut is None else f"stages that begin with the layers {', '.join(map(str, cut))}"
    given = f"stages that begin with the layers {', '.join(map(str, firsts))}; it cuts this model by itself, into {own}"
    yield firsts != cut, "stages", given


def first_layers(layers: int, *, layer: int, head: int, pp: int) -> tuple[int, ...] | None:
    """Return the first layer of each stage that nanotron cuts, the embedding counted: a stage ends with the layer that takes it
    beyond its share of all that ``layers`` layers and the head cost. None where layers do not reach for ``pp`` stages."""
    firsts, passed = [0], 0
    for stage in range(1, pp):
        passed = max((layers * layer + head) * stage // (layer * pp) + 1, passed + 1)
        firsts.append(1 + passed)
    return tuple(firsts) if passed <= layers else None


def _model_refusals(request: TrainingRequest, limits: Trainer) -> Iterator[tuple[bool, str, str]]:
    """A model of other layers than the launcher's, or a number format that it does not train in."""
    # What a graph of the user's own is, its export asks.
    if limits.layers is not None and request.model.hyperparameters is not None:
        for is_so, strange in _strange_parts(request.model, limits.layers):
            yield is_so, "model", f"{strange}; the layers of its decoders are {limits.layers.said}"
    has_modules = any(is_of_module(operator) for block in request.model.blocks for operator in block.operators)
    yield has_modules and not limits.mtp, "model", "layers that predict more tokens"
    yield request.workload.precision is DType.FP16 and not limits.fp16, "model", "fp16; it trains in bf16 and fp32"
    yield request.workload.precision is DType.FP32 and not limits.fp32, "model", "fp32; it trains in bf16"


_SWIGLU = (2, 5.0)
"""Inputs of the function of a gated feed-forward network, and its FLOPs an element (survey 5.2)."""


def _strange_parts(model: ModelGraph, layers: LlamaLayers | GptLayers) -> Iterator[tuple[bool, str]]:
    """The parts of a model by its operators, and whether it has each though decoders of these layers have not."""
    operators = [operator for name in dict.fromkeys(model.layers) for operator in model.block(name).operators]
    used = {dim for operator in operators for dim in operator.dims}
    yield KV_RANK in used, "latent attention"
    if isinstance(layers, GptLayers):
        blocks = [model.block(name).operators for name in dict.fromkeys(model.layers)]
        attending = [each for each in blocks if any(operator.kind is OperatorKind.ATTENTION for operator in each)]
        have = {any(EXPERTS in operator.dims for operator in each) for each in attending}
        yield have == {True, False} and not layers.uneven_experts, "experts in some layers and not in others"
        return
    matrices = {weight.dims for each in operators if each.kind is OperatorKind.MATMUL for weight in each.weights}
    functions = [
        each for each in operators if each.kind is OperatorKind.ELEMENTWISE and all(FFN in t.dims for t in each.inputs)
    ]
    yield (
        any((len(each.inputs), each.flops_per_element) != _SWIGLU for each in functions),
        "a feed-forward network not of SwiGLU",
    )
    yield EXPERTS in used, "experts"
    yield (HIDDEN,) in matrices, "biases of all matrices"
    yield (HEADS, HEAD_DIM) in matrices and not layers.qkv_bias, "biases of q, k and v"
    heads = model.dims.get(HEADS, 0) * model.dims.get(HEAD_DIM, 0)
    yield heads != model.dims[HIDDEN] and not layers.own_head_width, "heads of a width of their own"
    norms = {weight.dims for each in operators if each.kind is OperatorKind.NORM for weight in each.weights}
    yield any(HEAD_DIM in dims for dims in norms) and not layers.qk_norm, "norms of heads"
    yield any(each.window is not None for each in operators), "attention in windows"
    yield any(each.kind is OperatorKind.NORM and len(each.weights) > 1 for each in operators), "norms of mean and variance"
    assert model.hyperparameters is not None
    yield model.hyperparameters.rotary_share not in (None, 1.0), "rotary positions of a share of each head"


def _optimizer_refusals(plan: PipelinePlan, request: TrainingRequest, limits: Trainer) -> Iterator[tuple[bool, str, str]]:
    """An optimizer that the launcher has not, or one that the planner chose and it has not beside so little sharding."""
    trained_by = plan.trained_by(request.workload)
    chosen = trained_by.value
    yield trained_by not in limits.optimizers, "optimizer", f"{chosen}; it has {', '.join(sorted(limits.optimizers))}"
    if plan.optimizer is None:
        return
    least = min(stage.zero_stage if stage.axes.dp * stage.axes.cp > 1 else 3 for stage in plan.stages)
    unsharded = plan.optimizer in limits.optimizers_when_sharded and least == 0
    yield unsharded, "optimizer", f"{chosen} beside ZeRO 0; it has that for sharded states alone"


def _offload_refusals(plan: PipelinePlan, limits: Trainer) -> Iterator[tuple[bool, str, str]]:
    """Yield a refusal of each part of training state and activations on the host that the launcher has no setting for."""
    for index, stage in enumerate(plan.stages):
        where, moved, zero = f"stages[{index}].offload", stage.offload, stage.zero_stage
        several = stage.axes.dp * stage.axes.cp > 1
        yield moved.activations > 0, where, f"{moved.activations:.0%} of activations on the host; it has no setting for shares"
        yield (
            moved.optimizer > 0 and zero == 0 and several,
            where,
            "optimizer states on the host beside ZeRO-0; it moves sharded ones",
        )
        in_parts = stage.shard_ranks is not None and not limits.offloads_within_groups
        message = "state on the host beside sharding within a part of dp x cp; it has one or the other"
        yield in_parts and max(moved.optimizer, moved.weights, moved.gradients) > 0, where, message
        drives = "nvme" in (moved.optimizer_to.value, moved.weights_to.value)
        yield drives and limits.host_state is not HostState.ZERO_OFFLOAD, where, "state on drives; it has no setting for them"
        partly = drives and (zero < 3 or not several or 0 < moved.optimizer < 1)
        yield partly, where, "state on drives; all of it, under ZeRO-3"
        if limits.host_state in (HostState.NONE, HostState.SHARES_OF_THE_OPTIMIZER):
            yield (
                moved.weights > 0 or moved.gradients > 0,
                where,
                "weights or gradients on the host; it has no setting",
            )
        if limits.host_state is HostState.NONE:
            yield moved.optimizer > 0, where, "optimizer states on the host; it has no setting for them"
        if limits.host_state is HostState.ZERO_OFFLOAD:
            share = f"{moved.optimizer:.0%} of the optimizer states on the host; a share goes with ZeRO-3 alone"
            yield 0 < moved.optimizer < 1 and zero < 3, where, share
            yield (
                moved.weights > 0 and (moved.weights < 1 or zero < 3 or not several),
                where,
                "weights on the host; all, under ZeRO-3",
            )
            apart = moved.gradients > 0 and (moved.gradients != moved.optimizer or not several)
            yield apart, where, "gradients on the host; with a sharded optimizer's states alone, and as large a share"
        if limits.host_state is HostState.ALL_OR_NOTHING:
            shares = {moved.optimizer, moved.weights, moved.gradients}
            yield shares not in ({0.0}, {1.0}), where, "a part of the state on the host; it has no setting for them alone"
            yield shares == {1.0} and (zero < 3 or not several), where, "state on the host beside less than ZeRO-3"


def _microbatches(plan: PipelinePlan) -> int:
    return plan.microbatch.count if plan.microbatch is not None else 0


def _has_experts(request: TrainingRequest) -> bool:
    used = (operator for name in set(request.model.layers) for operator in request.model.block(name).operators)
    return any(picked_dims(operator) for operator in used)


def _has_window(request: TrainingRequest) -> bool:
    used = (operator for name in set(request.model.layers) for operator in request.model.block(name).operators)
    return any(operator.window for operator in used)


def _uses_muon(plan: PipelinePlan, request: TrainingRequest) -> bool:
    return (plan.optimizer or request.workload.optimizer).value == "muon"


def _kv_heads(request: TrainingRequest) -> int | None:
    """Key/value heads of the model, None where no operator has any."""
    used = (operator for name in set(request.model.layers) for operator in request.model.block(name).operators)
    return request.model.dims[KV_HEADS] if any(KV_HEADS in operator.dims for operator in used) else None
