"""Random small requests over the whole training space: whatever a request may open, few plans enough to enumerate them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, part_of_node
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight
from meshwright.costmodels.pipeline import Schedule
from meshwright.solver.blocks.recompute import modules_of
from meshwright.solver.problem.choice import TRAINING, Launched, Unnamed
from meshwright.solver.problem.choices import BatchShares, Gradients, GroupOrder, Recompute, Space, StageDegrees, TpOverlap
from meshwright.solver.problem.declared.operator_splits import OperatorSplit
from meshwright.solver.problem.declared.rank_order import RankOrder
from meshwright.solver.problem.declared.recompute_modules import ANY, OPERATORS, words_of_modules
from meshwright.solver.problem.graph import Block, BlockRun, ModelGraph
from meshwright.solver.problem.layer_dag import layer_dag
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import LEDGER
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from tests.support.opened_choices import opened
from tests.unit.solver.training.enumerated import every_part
from tests.unit.solver.training.every_plan import n_splits
from tests.unit.solver.training.instances import (
    TOKENS,
    embedding_block,
    head_block,
    memory_request,
    pair_block,
    roomier,
    sliced_request,
    varied_request,
)
from tests.unit.solver.training.stage_columns import alike, n_choices

MOST_WORK = 200_000
"""Plans that a request may have, each candidate counted as `_WORK_OF_A_CANDIDATE` more."""

_WORK_OF_A_CANDIDATE = 100

SOME_LAYERS = (1, 2, 3)
"""Numbers of first layers that parts of a pipeline may recompute whole, of models of up to eight layers."""

LARGER = 15
"""Times as many rows; an odd number, so that what 2 does not divide stays so."""

OPENED_HERE = frozenset(
    {
        "optimizers",
        "gradients",
        "offload_optimizer",
        "offload_activations",
        "offload_weights",
        "offload_gradients",
        "offload_optimizer_to",
        "offload_weights_to",
        "token_slices",
        "group_order",
        "idle_groups",
        "rank_order",
        "batch_shares",
        "stage_degrees",
        "recompute_modules",
    }
)
"""Choices that a request must name to open them, and that `drawn_request` opens where they go with what else it draws."""

TO_OPEN = tuple(
    name
    for name, entry in LEDGER.items()
    if entry.choice.forms & TRAINING and entry.choice.place is not None and entry.choice.unnamed is not Unnamed.ANY
)
"""Choices of training plans that are closed unless a request names them. Others are open where nothing restricts them."""

NOT_YET_OPENED = tuple(name for name in TO_OPEN if name not in OPENED_HERE)
"""Those that nobody thought of here: they are opened by their type."""

assert set(TO_OPEN) >= OPENED_HERE, "a choice that is opened here is one to open"

Rng = np.random.Generator


def full_request(seed: int) -> TrainingRequest:
    """A request that opens any of the training space: all that `varied_request` or `memory_request` draw, on clusters that are
    not perfect, for models that branch, with idle devices, stages that differ and replicas by node group.

    Choices are closed one by one, in random order, until all plans can be enumerated.
    """
    rng = np.random.default_rng([seed, 5])
    return _enumerable(drawn_request(seed, rng), rng)


def drawn_request(seed: int, rng: Rng) -> TrainingRequest:
    """A request as `full_request` draws it, with however many plans."""
    draw = (memory_request, sliced_request, varied_request)[int(np.searchsorted((0.25, 0.35), rng.random()))]
    request = _opened(draw(seed), rng)
    in_slices = bool(request.search.token_slices)
    kinds = np.random.default_rng([seed, 8])
    if kinds.random() < 0.12 and not in_slices:
        request = _of_three_kinds(request, kinds)
    some = np.random.default_rng([seed, 9])
    if some.random() < 0.25:
        numbers = SOME_LAYERS[: int(some.integers(1, len(SOME_LAYERS) + 1))]
        request = replace(request, search=replace(request.search, recompute_layers=numbers))
    splits = np.random.default_rng([seed, 12])
    if request.search.space is Space.FREE and request.search.system is None and splits.random() < 0.3:
        named = ((OperatorSplit.BATCH,), (OperatorSplit.WEIGHTS,), tuple(OperatorSplit))[int(splits.integers(3))]
        request = replace(request, search=replace(request.search, operator_splits=named))
    if rng.random() < 0.15 and not in_slices:
        request = _branching(request, rng)
    elif rng.random() < 0.15:
        request = _with_tied_head(request)
    modules = np.random.default_rng([seed, 11])
    has = modules_of(request.model)
    if has and modules.random() < 0.3:
        sets = [has[: int(modules.integers(1, len(has) + 1))], has[-1:], has]
        named = tuple(words_of_modules(each) for each in sets[: int(modules.integers(1, 4))])
        asked = (ANY,) if modules.random() < 0.3 else named
        if request.search.space is Space.FREE and modules.random() < 0.5:
            asked = (OPERATORS,) if modules.random() < 0.7 else (*named, OPERATORS)
        request = replace(request, search=replace(request.search, recompute_modules=asked))
    if rng.random() < 0.5 and not in_slices:
        request = larger(request, rng)
    if rng.random() < 0.25:
        request = replace(request, cluster=_imperfect(request.cluster, rng))
    names = [group.name for group in request.cluster.groups]
    if rng.random() < 0.2:
        idle = tuple(name for name in names if rng.random() < 0.7) or (names[0],)
        request = replace(request, search=replace(request.search, idle_groups=idle))
    if len(names) > 1 and rng.random() < 0.4:
        request = replace(request, search=replace(request.search, group_order=GroupOrder.ANY))
    if request.search.space is Space.FREE and not in_slices and rng.random() < 0.7:
        by_group = rng.random() < 0.45
        request = _shared_by_group(request, rng) if by_group else request
        request = _of_stages(request, rng) if not by_group or rng.random() < 0.2 else request
    if np.random.default_rng([seed, 7]).random() < 0.3:
        request = replace(request, search=replace(request.search, rank_order=tuple(RankOrder)))
    return _opened_by_type(request, seed)


def _opened_by_type(request: TrainingRequest, seed: int) -> TrainingRequest:
    """The request with each choice of `NOT_YET_OPENED` opened in three of ten, from random numbers of its own."""
    names, opening = [group.name for group in request.cluster.groups], np.random.default_rng([seed, 6])
    for name in NOT_YET_OPENED:
        had = request.search.space is Space.FREE or LEDGER[name].choice.launched is not Launched.BY_NONE
        if opening.random() < 0.3 and had:
            search = replace(request.search, **{name: opened(name, group_names=names)})
            request = replace(request, search=search)
    return request


def _opened(request: TrainingRequest, rng: Rng) -> TrainingRequest:
    """The request with half of what limits it lifted; some with much more memory."""
    limits = ("recompute", "zero_stages", "microbatch", "schedules", "pp")
    request = replace(request, search=replace(request.search, **{name: () for name in limits if rng.random() < 0.5}))
    if rng.random() < 0.4:
        request = replace(request, cluster=roomier(request, rng))
    return request


def _with_tied_head(request: TrainingRequest) -> TrainingRequest:
    """The request for a model whose head has the embedding's table; on one tp rank in the free space, where ties limit how the
    two may be split."""
    head = head_block()
    (product, *rest) = head.operators
    tied = replace(product, weights=(Weight("w", ("vocab", "hidden"), tied_to="embedding/embed/table"),))
    blocks = tuple(replace(head, operators=(tied, *rest)) if block.name == "head" else block for block in request.model.blocks)
    free = request.search.space is Space.FREE
    search = replace(request.search, tp=(1,)) if free else request.search
    return replace(request, model=replace(request.model, blocks=blocks), search=search)


def larger(request: TrainingRequest, rng: Rng) -> TrainingRequest:
    """The request with rows and sequences 15 times as long, so that products take longer than a host takes to launch them, and
    memory for a share of the state."""
    sizes = ("hidden", "ffn", "vocab", "head_dim", "expert_ffn")
    dims = {name: size * LARGER if name in sizes else size for name, size in request.model.dims.items()}
    model, workload = replace(request.model, dims=dims), request.workload
    more = int(18.0 * model.parameters() * float(rng.uniform(0.1, 1.5)))

    def with_room(group: NodeGroup) -> NodeGroup:
        device = replace(group.node.device, memory_bytes=group.node.device.memory_bytes + more)
        return replace(group, node=replace(group.node, device=device))

    groups = tuple(with_room(group) for group in request.cluster.groups)
    longer = replace(workload, seq_len=workload.seq_len * LARGER)
    return replace(request, model=model, workload=longer, cluster=replace(request.cluster, groups=groups))


def _imperfect(cluster: Cluster, rng: Rng) -> Cluster:
    """The cluster with a device lost, slower cards on some nodes, or a spine too small for them all."""
    kind, (*others, group) = int(rng.integers(3)), cluster.groups
    if kind == 0 and group.node.devices_per_node > 1:
        lost = part_of_node(group.node, group.node.devices_per_node - 1)
        damaged = replace(group, name="damaged", node=lost, nodes=1)
        whole = [replace(group, nodes=group.nodes - 1)] if group.nodes > 1 else []
        return replace(cluster, groups=(*others, *whole, damaged))
    if kind == 1 and cluster.n_devices > group.node.devices_per_node:
        slow = replace(group.node, inter=replace(group.node.inter, bytes_per_s=group.node.inter.bytes_per_s / 8))
        behind = replace(group, name="slow", node=slow, nodes=1)
        before = [replace(group, nodes=group.nodes - 1)] if group.nodes > 1 else []
        return replace(cluster, groups=(*others, *before, behind))
    return replace(cluster, oversubscription=8.0, nodes_per_leaf=(None, 2)[int(rng.integers(2))])


def _shared_by_group(request: TrainingRequest, rng: Rng) -> TrainingRequest:
    """Replicas by node group, which have one optimizer and keep gradients, on two or three groups."""
    groups, workload = request.cluster.groups[:3], request.workload
    if len(groups) == 1:
        groups = (*groups, _slower(groups[0], float(rng.uniform(0.4, 0.9)), "slower"))
    search = replace(
        request.search,
        batch_shares=BatchShares.BY_GROUP,
        optimizers=(),
        gradients=(),
        offload_gradients=(),
        microbatch=(),
        pp=(),
    )
    smaller = replace(workload, global_batch=int(rng.choice([4, 6, 8, 12])))
    return replace(request, cluster=replace(request.cluster, groups=groups), workload=smaller, search=search)


def _of_three_kinds(request: TrainingRequest, rng: Rng) -> TrainingRequest:
    """The request on one node of each of three kinds of devices, one or two of them a node."""
    groups = [
        NodeGroup(group.name, part_of_node(group.node, min(2, group.node.devices_per_node)), 1)
        for group in request.cluster.groups[:3]
    ]
    slower = [_slower(groups[0], float(rng.uniform(0.4, 0.9)), f"slower-{n}") for n in range(len(groups), 3)]
    return replace(request, cluster=replace(request.cluster, groups=(*groups, *slower)))


def _slower(group: NodeGroup, share: float, name: str) -> NodeGroup:
    """A node of devices that are slower by a share in all but their links."""
    device = group.node.device
    rates = {dtype: rate * share for dtype, rate in device.peak_flops.items()}
    slower = replace(device, name=name, peak_flops=rates, memory_bytes_per_s=device.memory_bytes_per_s * share)
    return NodeGroup(name, replace(group.node, name=name, device=slower), 1)


def _of_stages(request: TrainingRequest, rng: Rng) -> TrainingRequest:
    """Stages that differ, under one optimizer and without chunks; mostly on a few devices with a network as fast as their
    links, since small models are best on few stages else."""
    search = request.search
    search = replace(
        search,
        stage_degrees=StageDegrees.ANY,
        optimizers=(),
        tp_overlap=(TpOverlap.EXPOSED,),
        microbatch=(),
        pp=(2, 3) if rng.random() < 0.6 else (),
    )
    if not request.model.is_chain:
        return request
    if rng.random() < 0.7:
        groups = tuple(_few_fast(group, rng) for group in request.cluster.groups[:3])
        request = replace(request, cluster=replace(request.cluster, groups=groups))
    return replace(request, search=search)


def _few_fast(group: NodeGroup, rng: Rng) -> NodeGroup:
    """One to four devices of a group, one or two a node, with a network as fast as their links."""
    node = part_of_node(group.node, 2 if group.node.devices_per_node % 2 == 0 and rng.random() < 0.7 else 1)
    fast = replace(node.inter, bytes_per_s=node.devices_per_node * node.intra.bytes_per_s)
    return NodeGroup(group.name, replace(node, inter=fast), int(rng.integers(1, 4 // node.devices_per_node + 1)))


def _branching(request: TrainingRequest, rng: Rng) -> TrainingRequest:
    """An encoder-decoder of the launchers, or in the free space two towers that meet, on one tp rank mostly."""
    free = request.search.space is Space.FREE
    model = two_towers(rng) if free and rng.random() < 0.6 else encoder_decoder(rng)
    tp = (1,) if free or rng.random() < 0.5 else (1, 2)
    request = replace(request, model=model, search=replace(request.search, tp=tp, pp=()))
    return replace(request, cluster=roomier(request, rng)) if rng.random() < 0.5 else request


def encoder_decoder(rng: Rng) -> ModelGraph:
    """One or two layers of each stack."""
    config = {
        "model_type": "t5",
        "d_model": 256,
        "d_kv": 32,
        "d_ff": int(rng.choice([512, 1024])),
        "num_layers": int(rng.integers(1, 3)),
        "num_decoder_layers": int(rng.integers(1, 3)),
        "num_heads": 8,
        "vocab_size": int(rng.choice([512, 4096])),
    }
    return read_huggingface_config(config, name="t5")


def two_towers(rng: Rng) -> ModelGraph:
    """Layers that read what a tower of others wrote: once where they begin, or in each of them."""
    dims = {"hidden": 256, "ffn": int(rng.choice([256, 512])), "vocab": int(rng.choice([1001, 2048]))}
    x, out, seen = (Tensor(name, (*TOKENS, "hidden")) for name in ("x", "out", "seen"))
    ends = Operator("project", OperatorKind.ELEMENTWISE, (x,), (seen,), flops_per_element=1.0)
    meets = Operator("meet", OperatorKind.ELEMENTWISE, (x, seen), (out,), flops_per_element=1.0)
    blocks = (
        embedding_block(),
        pair_block(),
        Block("tower_end", (ends,), "seen"),
        Block("meeting", (meets,), "out"),
        head_block(),
    )
    above, below = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    runs = [("embedding", 1), ("pair", above), ("tower_end", 1), ("embedding", 1), ("meeting", below), ("pair", 1), ("head", 1)]
    edges = ((0, 1), (1, 2), (2, 4), (3, 4), (4, 5), (5, 6))
    return ModelGraph("two-towers", dims, blocks, tuple(BlockRun(name, repeat) for name, repeat in runs), edges=edges)


def _enumerable(request: TrainingRequest, rng: Rng) -> TrainingRequest:
    """The request with choices closed in random order until its plans are few enough."""
    closers = _closers(rng)
    for place in rng.permutation(len(closers)):
        if _is_enumerable(request):
            return request
        request = closers[place](request)
    if not _is_enumerable(request):
        request = replace(request, search=replace(request.search, tp=(1,), cp=(1,)))
    assert _is_enumerable(request), request.search
    return request


def _is_enumerable(request: TrainingRequest) -> bool:
    """Return True if the work of enumerating all plans, of all searches that the request stands for, is little enough."""
    work = 0
    for each in _work(request):
        work += each
        if work > MOST_WORK:
            return False
    return True


def _work(request: TrainingRequest) -> Iterator[int]:
    dag = layer_dag(request.model)
    for part in every_part(request):
        costs = TrainingCosts(part)
        for candidates in alike(part):
            n_shardings = n_choices(costs, candidates[0])
            for candidate in candidates:
                yield _WORK_OF_A_CANDIDATE + n_shardings * n_splits(dag, candidate)


def _closers(rng: Rng) -> list[Callable[[TrainingRequest], TrainingRequest]]:
    """Ways to close a choice that a request may have open."""

    def searching(**changes: object) -> Callable[[TrainingRequest], TrainingRequest]:
        return lambda request: replace(request, search=replace(request.search, **changes))  # type: ignore[arg-type]

    def fewer_stages_of_zero(request: TrainingRequest) -> TrainingRequest:
        left = request.search.zero_stages or (0, 1, 2, 3)
        return replace(request, search=replace(request.search, zero_stages=left[: max(1, len(left) // 2)]))

    def one_share_of_each(request: TrainingRequest) -> TrainingRequest:
        names = ("offload_optimizer", "offload_activations", "offload_weights", "offload_gradients")
        ends = {name: getattr(request.search, name)[-1:] for name in names}
        return replace(request, search=replace(request.search, **ends))

    modes = [Recompute.NONE, Recompute.FULL, Recompute.SELECTIVE]
    return [
        searching(recompute=(modes[int(rng.integers(3))],)),
        searching(schedules=(Schedule.ONE_F_ONE_B,)),
        searching(microbatch=(1,)),
        searching(gradients=(Gradients.KEPT,)),
        searching(optimizers=()),
        searching(tp=(1,)),
        searching(cp=(1,)),
        searching(pp=(1, 2)),
        searching(ep=(1,)),
        searching(idle_groups=()),
        searching(recompute_layers=(), recompute_modules=()),
        fewer_stages_of_zero,
        fewer_stages_of_zero,
        one_share_of_each,
        *(searching(**{name: LEDGER[name].default}) for name in NOT_YET_OPENED),
    ]
