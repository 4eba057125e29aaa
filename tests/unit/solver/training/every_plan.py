"""Every plan of a small request's space, straight from its definition; no pruning of any kind."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from meshwright.costmodels.model.operators import AttentionMask, OperatorKind
from meshwright.costmodels.pipeline import TOKEN_SLICED, Schedule
from meshwright.solver.blocks.tp_strategies import REPLICATED, Spec, sharded
from meshwright.solver.problem.carried_choices import MeshChoices, StageChoices
from meshwright.solver.problem.choices import Gradients, Launcher, Recompute, Space, TpOverlap
from meshwright.solver.problem.declared.cp_keys import CpKeys
from meshwright.solver.problem.declared.expert_overlap import ExpertOverlap
from meshwright.solver.problem.declared.rank_order import RankOrder
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.layer_dag import LayerDag, layer_dag
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import Decision, DecisionCost, StageSpan, StageTable, evaluate_decision
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.training.space.meshes import Mesh
from meshwright.solver.training.space.rerun_choices import RerunChoices
from meshwright.solver.training.space.schedules import Pipelining
from meshwright.solver.training.space.sliced_sequences import slice_times_s
from tests.unit.solver.training.every_place import Place, every_place
from tests.unit.solver.training.instances import modes_of

OF_BRANCHES = (Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.EAGER_ONE_F_ONE_B, Schedule.ZB_H1, Schedule.ZB_H2)
"""Schedules that stages of a model that branches can have: each rank holds one part."""


@dataclass(frozen=True)
class Priced:
    """A plan of the space with its cost and the tables that this follows from."""

    decision: Decision
    cost: DecisionCost
    tables: tuple[StageTable, ...]


def every_fitting_plan(request: TrainingRequest) -> Iterator[Priced]:
    """Every plan of the space that fits, straight from its definition; no pruning of any kind."""
    costs = TrainingCosts(request)
    for candidate in every_candidate(request):
        kinds = costs.stage_kinds(candidate)
        for sharding in every_sharding(costs, candidate):
            tables = costs.stage_tables(candidate, sharding, kinds)
            for spans in every_split_of(request.model, candidate):
                decision = Decision(candidate, sharding, spans)
                cost = evaluate_decision(decision, tables)
                if cost.fits:
                    yield Priced(decision, cost, tables)


def every_candidate(request: TrainingRequest) -> Iterator[Candidate]:
    workload, search, n = request.workload, request.search, request.cluster.n_devices
    free = search.space is Space.FREE
    modes = [m for m in modes_of(search.space, search.launcher) if not search.recompute or m in search.recompute]
    # Each number of layers comes once beside the modes of whole stages.
    some_from: tuple[Recompute, ...] | None = tuple(modes) if free else (Recompute.FULL,)
    if not {Recompute.NONE, Recompute.FULL} <= {*modes} or not (free or search.launcher == "megatron-lm"):
        some_from = None
    for dp, tp, pp, cp in itertools.product(range(1, n + 1), repeat=4):
        if any(named and degree not in named for degree, named in ((dp, search.dp), (tp, search.tp), (cp, search.cp))):
            continue
        if dp * tp * pp * cp != n or pp > len(request.model.layers) or (search.pp and pp not in search.pp):
            continue
        if any(group.node.devices_per_node % tp for group in request.cluster.groups):
            continue
        if cp > 1 and not splits_sequence(request, tp, cp):
            continue
        if not free and search.launcher != "megatron-lm" and request.model.dims.get("kv_heads", 0) % tp:
            continue
        if pp > 1 and not free and not crosses_stages(request.model, search.launcher):
            continue
        for b, zero in itertools.product(range(1, workload.global_batch + 1), range(4)):
            m, rest = divmod(workload.global_batch, dp * b)
            if rest or (search.microbatch and b not in search.microbatch):
                continue
            if zero >= 2 and pp > 1 and not free and search.launcher != "torchtitan":
                continue
            if search.zero_stages and zero not in search.zero_stages:
                continue
            # Megatron-LM's experts train beside tp with sequence parallelism only.
            refused = tp > 1 and not free and search.launcher == "megatron-lm" and has_experts(request)
            layouts = [] if refused else [REPLICATED]
            if tp > 1 and workload.seq_len // cp % tp == 0 and (free or search.launcher != "deepspeed"):
                layouts.append(sharded("seq"))
            for layout in layouts:
                sliced_ways = every_slicing(request, (tp, pp, cp), b, m) if zero < 2 or dp * cp == 1 else ()
                for pipelining in itertools.chain(every_pipelining(request, pp, m), sliced_ways):
                    by_stage = free and pipelining.schedule.value in ("gpipe", "1f1b", "eager-1f1b")
                    sliced = bool(pipelining.slices)
                    named = [mode for mode in modes if not (sliced and mode is Recompute.FINE_GRAINED)]
                    every_mode = [tuple(modes)] if by_stage else [(mode,) for mode in named]
                    for choice, words in every_set_of_modules(request, every_mode, tp, layout):
                        places = list(every_place(request, zero if dp * cp > 1 else None, m))
                        experts = every_expert_mesh(request, dp * cp, tp)
                        ulysses_of = every_ulysses(request, tp, cp)
                        inner = itertools.product(experts, ulysses_of, list(RankOrder), list(CpKeys), places)
                        for (ep, etp), ulysses, order, keys, place in inner:
                            if not has_order(request, order, pp=pp, dp=dp, same_dp=(etp or tp) * ep == tp * cp):
                                continue
                            if not has_keys(request, keys, cp=cp, ulysses=ulysses):
                                continue
                            alike = ep == 1 and etp is None
                            for shards in every_shard_ranks(request, dp * cp, cp, zero if alike else None):
                                if place.offload.gradients and (shards or pipelining.schedule is Schedule.DUALPIPE):
                                    continue
                                mesh = Mesh(dp, tp, pp, cp, ep, ulysses, etp, MeshChoices(order, keys))
                                again = StageChoices(recompute_modules=words)
                                outer = Candidate(mesh, b, m, zero, layout, choice, pipelining, choices=again)
                                for way in every_tp_overlap(request, outer):
                                    if sliced and (way is TpOverlap.CHUNKED or moves_with_passes(place)):
                                        continue
                                    found = replace(outer, shard_ranks=shards, tp_overlap=way, **vars(place))
                                    ways_of_experts = list(every_expert_overlap(request, found))
                                    yield from ways_of_experts
                                    may_rerun = some_from is not None and {*choice} >= {*some_from} - {Recompute.FINE_GRAINED}
                                    may_rerun = may_rerun or (some_from is not None and choice == (Recompute.FULL,))
                                    if words is None and may_rerun and found in ways_of_experts:
                                        yield from every_number_of_layers(request, found)


def every_set_of_modules(
    request: TrainingRequest, choices: list[tuple[Recompute, ...]], tp: int, layout: Spec
) -> Iterator[tuple[tuple[Recompute, ...], str | None]]:
    """Choices of modes, with each set of modules where fine-grained recomputation is among them; None for the usual set."""
    search = request.search
    asked = search.recompute_modules if search.system is None else ()
    for choice in choices:
        if not asked or Recompute.FINE_GRAINED not in choice:
            yield choice, None
            continue
        others = (
            choice if {"any", "operators"} & {*asked} else tuple(mode for mode in choice if mode is not Recompute.FINE_GRAINED)
        )
        if others:
            yield others, None
        for words in every_named_set(request.model, asked):
            yield choice, words
        if "operators" in asked:
            # That these are the least-time ones is shown against all sets of operators elsewhere.
            every = RerunChoices(request).sets(tp, layout)
            yield from ((choice, words) for words in every if words is not None and "/" in words and words not in asked)


def every_named_set(model: ModelGraph, asked: tuple[str, ...]) -> Iterator[str]:
    """The sets that are asked for; of any all that can be told apart by what they save, but the usual one."""
    yield from (words for words in asked if words not in ("any", "operators"))
    if "any" not in asked:
        return
    operators = [op for block in model.blocks for op in block.operators if "vocab" not in op.dims]
    dims = {dim for op in operators for dim in op.dims}
    has = {
        "layernorm": any(op.kind is OperatorKind.NORM for op in operators if op.name != "final_norm"),
        "moe_act": "expert_ffn" in dims,
        "mla_up_proj": "kv_rank" in dims,
        "mlp": "ffn" in dims,
        "moe": "experts" in dims,
        "shared_experts": "shared_ffn" in dims,
    }
    present = [name for name, found in has.items() if found]
    usual = {*present} & {"layernorm", "moe_act", "mla_up_proj"}
    for size in range(1, len(present) + 1):
        for each in itertools.combinations(present, size):
            twice = "moe" in each and {"moe_act", "shared_experts"} & {*each}
            if not twice and {*each} != usual and "+".join(each) not in asked:
                yield "+".join(each)


def has_order(request: TrainingRequest, order: RankOrder, *, pp: int, dp: int, same_dp: bool) -> bool:
    """Return True if ranks may lie in an order that is another than the usual one, where there are several of both axes."""
    search = request.search
    if pp == 1 or dp == 1:
        return order is RankOrder.PP_OUTERMOST
    by_launcher = search.space is Space.FREE or (search.launcher == "megatron-lm" and same_dp)
    return order in (search.rank_order or (RankOrder.PP_OUTERMOST,)) and (order is RankOrder.PP_OUTERMOST or by_launcher)


def has_keys(request: TrainingRequest, keys: CpKeys, *, cp: int, ulysses: int) -> bool:
    """Return True if ranks of a sequence may see each other's keys so: gathered where the launcher can."""
    search = request.search
    if cp == ulysses:
        return keys is CpKeys.RING
    allowed = not search.cp_keys or keys in search.cp_keys
    if keys is CpKeys.RING:
        return allowed
    by_launcher = search.space is Space.FREE or (search.launcher == "megatron-lm" and ulysses == 1)
    attention = [op for block in request.model.blocks for op in block.operators if op.kind is OperatorKind.ATTENTION]
    causal = bool(attention) and all(op.mask is AttentionMask.CAUSAL for op in attention)
    return allowed and by_launcher and causal


def every_number_of_layers(request: TrainingRequest, whole: Candidate) -> Iterator[Candidate]:
    """The same plan with each number of first layers of each part recomputed whole, and the rest not."""
    model, choice = request.model, whole.pipelining
    if not model.is_chain or whole.offload.activations or request.search.system is not None or choice.slices:
        return
    if choice.schedule.value not in ("1f1b", "gpipe", "eager-1f1b", "interleaved-1f1b"):
        return
    for number in range(1, len(model.layers)):
        if request.search.recompute_layers and number not in request.search.recompute_layers:
            continue
        if whole.mesh.pp == 1:
            yield replace(whole, recompute=(Recompute.FULL,), choices=StageChoices(number))
        else:
            yield replace(whole, recompute=(Recompute.NONE, Recompute.FULL), choices=StageChoices(number))


def crosses_stages(model: ModelGraph, launcher: Launcher) -> bool:
    """Return True if the launcher's stages pass on all tensors that later ones read, and may share a tied weight."""
    if launcher == "megatron-lm":
        return model.is_chain
    return launcher == "deepspeed" or not model.tied_weights()


def splits_sequence(request: TrainingRequest, tp: int, cp: int) -> bool:
    """Return True if cp ranks can share a sequence: where there is attention, or a mixer that the launcher can share."""
    search, workload = request.search, request.workload
    free = search.space is Space.FREE
    used = [op for block in request.model.blocks for op in block.operators]
    attention, scans = any(op.mask for op in used), any(op.chunk for op in used)
    parts = 2 * cp if attention else cp
    if not (attention or scans) or workload.seq_len % parts or (not free and search.launcher == "deepspeed"):
        return False
    if not scans or free:
        return True
    # Megatron-LM exchanges heads; groups are shared out or copied.
    heads, groups = request.model.dims["ssm_heads"] // tp, max(1, request.model.dims["ssm_groups"] // tp)
    return search.launcher == "megatron-lm" and heads % cp == 0 and (groups % cp == 0 or cp % groups == 0)


def moves_with_passes(place: Place) -> bool:
    """Return True if more than optimizer states of a place moves, or gradients go before all are summed."""
    moved = place.offload
    return bool(moved.activations or moved.weights or moved.gradients) or place.gradients is Gradients.RELEASED


def every_slicing(request: TrainingRequest, degrees: tuple[int, int, int], b: int, m: int) -> Iterator[Pipelining]:
    """Both schedules of token slices with every number of slices that the request names, of lengths that take least."""
    search, (tp, pp, cp) = request.search, degrees
    n_tiles, rest = divmod(request.workload.seq_len, 128)
    named = [s for s in (Schedule.TERAPIPE, Schedule.SEQ_1F1B) if not search.schedules or s in search.schedules]
    if pp == 1 or cp > 1 or rest or not any(n > 1 for n in search.token_slices) or 128 % tp:
        return
    devices = {group.node.device.name: group.node.device for group in request.cluster.groups}
    times_s = np.max([slice_times_s(request, device, tp=tp, microbatch=b) for device in devices.values()], axis=0)
    for count in (n for n in search.token_slices if n > 1):
        cuts = [(0, *inner, n_tiles) for inner in itertools.combinations(range(1, n_tiles), count - 1)]
        of_slices = [[float(times_s[ends]) for ends in itertools.pairwise(cut)] for cut in cuts]
        taken_s = [m * sum(each) + (pp - 1) * max(each) for each in of_slices]
        least = min(range(len(cuts)), key=lambda n: (taken_s[n] > min(taken_s) * (1 + 1e-12), max(of_slices[n])))
        # Of cuts that take the same the one whose last slices begin first.
        evenest = min(range(len(cuts)), key=lambda n: (max(of_slices[n]), sum(of_slices[n]), cuts[n][::-1]))
        for schedule in named:
            best = cuts[least if schedule is Schedule.TERAPIPE else evenest]
            yield Pipelining(schedule, slices=tuple(128 * (end - first) for first, end in itertools.pairwise(best)))


def every_tp_overlap(request: TrainingRequest, candidate: Candidate) -> Iterator[TpOverlap]:
    """Exposed where allowed or where there is no tp; chunks of what is gathered and scattered, where the launcher has them."""
    search, tp, workload = request.search, candidate.mesh.tp, request.workload
    asked = search.tp_overlap or tuple(TpOverlap)
    if tp == 1 or TpOverlap.EXPOSED in asked:
        yield TpOverlap.EXPOSED
    parts = tp
    if search.space is Space.LAUNCHABLE:
        on_nvlink = all("nvlink" in group.node.intra.name for group in request.cluster.groups)
        if search.launcher == "deepspeed" or not on_nvlink:
            return
        if search.launcher == "megatron-lm":
            if candidate.zero_stage > 1:
                return
            parts = 4 * tp
    fits = workload.seq_len // candidate.mesh.cp % parts == 0
    if TpOverlap.CHUNKED in asked and candidate.boundary == sharded("seq") and fits:
        yield TpOverlap.CHUNKED


def every_expert_overlap(request: TrainingRequest, candidate: Candidate) -> Iterator[Candidate]:
    """As it is, where exchanges may show, there are none or DualPipe hides them; and under another micro-batch."""
    search, schedule, pp = request.search, candidate.pipelining.schedule.value, candidate.mesh.pp
    asked, in_pairs = search.expert_overlap or (ExpertOverlap.EXPOSED,), schedule.startswith("dualpipe")
    if candidate.mesh.ep == 1 or in_pairs or ExpertOverlap.EXPOSED in asked:
        yield candidate
    light = tuple(mode for mode in candidate.recompute if mode is not Recompute.FULL)
    suits = candidate.mesh.ep > 1 and light and not candidate.pipelining.slices and candidate.n_microbatches >= 2 * pp
    has_flag = search.space is Space.FREE or search.launcher == "megatron-lm"
    suits = suits and "moe" not in (candidate.choices.recompute_modules or "").split("+")
    if ExpertOverlap.BATCH in asked and suits and has_flag and (pp == 1 or schedule == "interleaved-1f1b"):
        yield replace(candidate, recompute=light, expert_overlap=ExpertOverlap.BATCH)


def every_shard_ranks(request: TrainingRequest, n: int, cp: int, zero: int | None) -> list[int | None]:
    """All ranks, and every part of them that launchers with such groups can shard within at this ZeRO stage; below ZeRO-3 those
    that the request names. None: of ranks with experts of their own, which have no groups."""
    named = request.search.shard_ranks if zero != 0 else ()
    of_launchers = {"megatron-lm": (1,), "deepspeed": (3,), "torchtitan": (2, 3)}
    has_groups = request.search.space is Space.FREE or zero in of_launchers[request.search.launcher]
    parts = [k for k in range(2, n) if n % k == 0 and k % cp == 0] if zero and has_groups and (named or zero == 3) else []
    return [k for k in (None, *parts) if not named or n == 1 or (k or n) in named]


def has_experts(request: TrainingRequest) -> bool:
    return any(block.name == "moe" for block in request.model.blocks)


def every_expert_mesh(request: TrainingRequest, n: int, tp: int) -> list[tuple[int, int | None]]:
    """Every ep with all tp ranks sharing an expert, and with whole experts on each of them."""
    named = request.search.etp if has_experts(request) else ()
    shared: list[tuple[int, int | None]] = [(ep, None) for ep in every_ep(request, n)] if not named or tp in named else []
    if tp == 1 or not has_experts(request) or (named and 1 not in named):
        return shared
    if request.search.space is Space.LAUNCHABLE and request.search.launcher != "megatron-lm":
        return shared
    return [*shared, *((ep, 1) for ep in every_ep(request, n * tp))]


def every_ep(request: TrainingRequest, n: int) -> list[int]:
    """Every ep that divides the ranks and the experts, where there are experts and the launcher spreads them; of those that the
    request names."""
    routed = has_experts(request)
    spread = request.search.space is Space.FREE or request.search.launcher == "megatron-lm"
    experts = request.model.dims.get("experts", 1)
    every = [ep for ep in range(1, n + 1) if n % ep == 0 and experts % ep == 0] if routed and spread else [1]
    return [ep for ep in every if not request.search.ep or ep in request.search.ep]


def every_ulysses(request: TrainingRequest, tp: int, cp: int) -> list[int]:
    """Every part of cp that leaves each rank beside tp whole heads, where the launcher exchanges heads: those that the request
    names, or those inside a node."""
    exchanges = request.search.space is Space.FREE or request.search.launcher == "megatron-lm"
    heads = math.gcd(request.model.dims.get("heads", 1), request.model.dims.get("kv_heads", 1))
    node = math.gcd(*(group.node.devices_per_node for group in request.cluster.groups))
    exchanges = exchanges and any(op.mask for block in request.model.blocks for op in block.operators)
    whole = [u for u in range(1, cp + 1) if u == 1 or (exchanges and cp % u == 0 and heads % (tp * u) == 0)]
    named = request.search.ulysses
    return [u for u in whole if (u in named if named else u == 1 or node % (tp * u) == 0)]


def every_pipelining(request: TrainingRequest, pp: int, m: int) -> Iterator[Pipelining]:
    """Every schedule with every number of chunks that the launcher has, and that reaches its steady state."""
    if pp == 1:
        yield Pipelining()
        return
    search, n_layers = request.search, len(request.model.layers)
    if search.token_slices and 1 not in search.token_slices:
        return
    launchers = {
        "megatron-lm": ["1f1b", "interleaved-1f1b"],
        "deepspeed": ["1f1b"],
        "torchtitan": ["gpipe", "1f1b", "interleaved-1f1b", "zb-v", "dualpipe-v"],
    }
    names = list(Schedule) if search.space is Space.FREE else [Schedule(name) for name in launchers[search.launcher]]
    least = {"zb-h1": pp, "zb-h2": 2 * pp - 1} | dict.fromkeys(("zb-v", "v-half", "v-min", "dualpipe", "dualpipe-v"), 2 * pp)
    for schedule in (name for name in names if name not in TOKEN_SLICED):
        if (search.schedules and schedule not in search.schedules) or m < least.get(schedule.value, 1):
            continue
        if not request.model.is_chain and schedule not in OF_BRANCHES:
            continue
        # PyTorch's own 1F1B wants as many micro-batches as stages.
        if search.space is not Space.FREE and search.launcher == "torchtitan" and schedule.value == "1f1b" and m < pp:
            continue
        if schedule is Schedule.DUALPIPE and (pp % 2 or m % 2):
            continue
        if schedule is Schedule.INTERLEAVED and m % pp:
            continue
        in_two = schedule.value in ("zb-v", "v-half", "v-min", "dualpipe-v")
        for chunks in range(2, n_layers + 1) if schedule is Schedule.INTERLEAVED else [2 if in_two else 1]:
            if pp * chunks <= n_layers and (not search.virtual_stages or chunks == 1 or chunks in search.virtual_stages):
                yield Pipelining(schedule, chunks)


def every_sharding(costs: TrainingCosts, candidate: Candidate) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All combinations of strategies of all operators, dominated ones too."""
    setting = costs.settings(candidate, costs.stage_kinds(candidate)[0])[0]
    per_block = []
    for block in costs.block_names:
        problem = costs.problem(block, setting)
        if problem is None:
            return
        per_block.append(list(itertools.product(*(range(len(options)) for options in problem.strategies))))
    yield from itertools.product(*per_block)


def every_split(dag: LayerDag, candidate: Candidate) -> Iterator[tuple[StageSpan, ...]]:
    """Every way to cut the layers in parts: of a chain runs, of a model that branches stages none of which comes before what
    it reads."""
    schedule, chunks, pp = candidate.pipelining.schedule, candidate.pipelining.chunks, candidate.mesh.pp
    if chunks > 1 or schedule is Schedule.DUALPIPE:
        yield from every_even_split(dag.n_layers, chunks * pp, candidate.recompute[0])
        return
    for modes in itertools.product(candidate.recompute, repeat=pp):
        if dag.is_chain:
            for cuts in itertools.combinations(range(1, dag.n_layers), pp - 1):
                ends = zip((0, *cuts), (*cuts, dag.n_layers), modes, strict=True)
                yield tuple(StageSpan(first, end - 1, mode) for first, end, mode in ends)
            continue
        for stage_of in every_staging(dag, pp):
            members = [tuple(layer for layer, s in enumerate(stage_of) if s == stage) for stage in range(pp)]
            yield tuple(StageSpan(each[0], each[-1], mode, each) for each, mode in zip(members, modes, strict=True))


def every_split_of(model: ModelGraph, candidate: Candidate) -> Iterator[tuple[StageSpan, ...]]:
    """Every way to cut a model; in a pipeline that recomputes some layers of each part parts are even."""
    number = candidate.choices.recompute_layers
    if number is None or candidate.mesh.pp == 1:
        yield from every_split(layer_dag(model), candidate)
        return
    inside = [not any(op.kind.value in ("embedding", "loss") for op in model.block(name).operators) for name in model.layers]
    n_parts = candidate.mesh.pp * candidate.pipelining.chunks
    for spans in every_even_split(len(model.layers), n_parts, Recompute.FULL):
        again = [[layer for layer in span.numbers if inside[layer]] for span in spans]
        if all(len(layers) <= number for layers in again):
            continue
        ends = [[*layers, span.last + 1][: number + 1][-1] for span, layers in zip(spans, again, strict=True)]
        yield tuple(replace(span, kept_from=end) for span, end in zip(spans, ends, strict=True))


def n_splits(dag: LayerDag, candidate: Candidate) -> int:
    """Return the number of ways to cut the layers in parts."""
    if candidate.choices.recompute_layers is not None and candidate.mesh.pp > 1:
        return sum(1 for _ in every_even_split(dag.n_layers, candidate.mesh.pp * candidate.pipelining.chunks, Recompute.FULL))
    mesh = Mesh(dp=1, tp=1, pp=candidate.mesh.pp, cp=1)
    return _n_splits(dag, Candidate(mesh, 1, 1, 0, REPLICATED, candidate.recompute, candidate.pipelining))


@lru_cache(maxsize=256)
def _n_splits(dag: LayerDag, candidate: Candidate) -> int:
    of_one_mode = replace(candidate, recompute=candidate.recompute[:1])
    by_stage = candidate.pipelining.modes_by_stage
    return sum(1 for _ in every_split(dag, of_one_mode)) * (len(candidate.recompute) ** candidate.mesh.pp if by_stage else 1)


def every_staging(dag: LayerDag, pp: int) -> Iterator[tuple[int, ...]]:
    """The stage of each layer, in every way that leaves no stage empty."""
    known: list[tuple[int, ...]] = [()]
    for reads in dag.reads:
        known = [(*before, stage) for before in known for stage in range(max((before[s] for s in reads), default=0), pp)]
    return (stage_of for stage_of in known if len(set(stage_of)) == pp)


def every_even_split(n_layers: int, parts: int, mode: Recompute) -> Iterator[tuple[StageSpan, ...]]:
    """First and last part of up to one layer more than an even share; of the others none is longer by more than one layer,
    and none is longer than one before it."""
    most = math.ceil(n_layers / parts) + 1
    for cuts in itertools.combinations(range(1, n_layers), parts - 1):
        ends = (*cuts, n_layers)
        sizes = [end - first for first, end in zip((0, *cuts), ends, strict=True)]
        between = sizes[1:-1]
        even = between == sorted(between, reverse=True) and max(between, default=0) - min(between, default=0) <= 1
        if even and sizes[0] <= most and sizes[-1] <= most:
            yield tuple(StageSpan(end - size, end - 1, mode) for end, size in zip(ends, sizes, strict=True))
