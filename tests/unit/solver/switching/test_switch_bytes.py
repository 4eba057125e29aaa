"""Bytes to move between two plans, against maps that say of every single element which devices hold it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from meshwright.costmodels.cluster.cluster import Cluster, Device, Link, NodeGroup, NodeType
from meshwright.costmodels.errors import PlanFileError
from meshwright.costmodels.memory.training_state import Optimizer
from meshwright.costmodels.model.operators import Operator, OperatorKind, Weight
from meshwright.costmodels.units import DType
from meshwright.solver.answer.layouts import Pipelines, Placement, Uniform
from meshwright.solver.answer.plan import AnsweredRequest, Plan
from meshwright.solver.answer.predicted import Certificate, SearchStats, Status
from meshwright.solver.answer.stage import Axes, DeviceRange, LayerSpan, Microbatch, OperatorSharding, Stage, StageMemory
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.graph import Block, BlockRun, ModelGraph
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.switching import Switch, switch_bytes
from tests.support.flat_plans import flat, with_fields
from tests.unit.solver.training.instances import attention_block, embedding_block, expert_block, head_block, mlp_block

DIMS = {"hidden": 8, "ffn": 12, "vocab": 10, "heads": 4, "kv_heads": 2, "head_dim": 2}
DIMS |= {"experts": 4, "top_k": 2, "expert_ffn": 3}
SPLIT_DIMS = {"embed": "vocab", "lm_head": "vocab", "qkv": "heads", "out": "heads", "core": "heads"}
BYTES = {"weights": 2.0, "optimizer": 12.0}
Element = tuple[object, ...]


def model(*, tied: bool = False) -> ModelGraph:
    head = head_block()
    if tied:
        projection, loss = head.operators
        table = Weight("w", ("vocab", "hidden"), tied_to="embedding/embed/table")
        head = Block("head", (replace(projection, weights=(table,)), loss), head.output)
    blocks = (embedding_block(), attention_block(), mlp_block(), expert_block(), head)
    runs = (("embedding", 1), ("attn", 1), ("mlp", 1), ("attn", 1), ("moe", 1), ("mlp", 1), ("head", 1))
    return ModelGraph("small", DIMS, blocks, tuple(BlockRun(name, count) for name, count in runs))


def cluster(nodes: int, per_node: int = 2) -> Cluster:
    device = Device("d", 10**9, {DType.BF16: 1e14}, 1e12, "a100_sxm")
    node = NodeType("n", device, per_node, Link("intra", 200e9, 1e-6), Link("inter", 50e9, 5e-6))
    return Cluster((NodeGroup("g", node, nodes),))


def answered(rng: np.random.Generator, graph: ModelGraph, *, n_devices: int, on: Cluster) -> AnsweredRequest:
    """A plan of random degrees, borders, splits and ZeRO stage on at most so many devices."""
    dp, tp, cp, pp = (int(rng.choice([1, 2, 3, 4])) for _ in range(4))
    if dp * tp * cp * pp > n_devices:
        return answered(rng, graph, n_devices=n_devices, on=on)
    ep = int(rng.choice([e for e in (1, 2, 4) if dp * cp % e == 0]))
    axes, zero = Axes(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep), int(rng.integers(4))
    borders = [0, *sorted(rng.permutation(np.arange(1, len(graph.layers)))[: pp - 1].tolist()), len(graph.layers)]
    memory = StageMemory(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    stages = tuple(
        Stage(
            tuple(LayerSpan(graph.layers[layer], layer, 1) for layer in range(first, end)),
            (DeviceRange(i * dp * tp * cp, dp * tp * cp),),
            axes,
            Recompute.NONE,
            zero,
            0.0,
            0.0,
            1.0,
            memory,
        )
        for i, (first, end) in enumerate(itertools.pairwise(borders))
    )
    shardings = tuple(
        OperatorSharding(block.name, operator.name, split)
        for block in graph.blocks
        for operator in block.operators
        if tp > 1 and (split := split_of(rng, operator)) is not None
    )
    certificate = Certificate(Status.FEASIBLE, 1.0, None, None, "s", "given")
    pipelines = Pipelines(axes, stages, shardings, False, "1f1b", Microbatch(1, 1))
    layout = Uniform(pipelines, Placement())
    plan = Plan("training", True, certificate, dp * tp * cp * pp, SearchStats(1, 1, 0.0), (), layout=layout)
    workload = TrainingWorkload("training", global_batch=12, seq_len=64)
    return AnsweredRequest(plan, TrainingRequest(graph, on, workload))


def split_of(rng: np.random.Generator, operator: Operator) -> str | None:
    if operator.kind in (OperatorKind.NORM, OperatorKind.ELEMENTWISE, OperatorKind.LOSS):
        return None
    split = SPLIT_DIMS.get(operator.name) or next(dim for dim in ("ffn", "expert_ffn") if dim in operator.dims)
    # Tied weights must be split alike, so the vocabulary always is; others may be left whole.
    return split if split == "vocab" or rng.random() < 0.8 else None


def holders(given: AnsweredRequest) -> dict[str, dict[Element, set[int]]]:
    """The ranks that hold each element, by kind of state: every element is asked of every rank."""
    graph, plan = given.request.model, given.plan
    splits = {(s.block, s.operator): s.strategy for s in flat(plan).shardings}
    found: dict[str, dict[Element, set[int]]] = {"weights": {}, "optimizer": {}}
    for stage in flat(plan).stages:
        for span, (number, rank) in itertools.product(stage.blocks, enumerate(range_of(stage))):
            for operator in graph.block(span.block).operators:
                for weight, kind in itertools.product(operator.weights, found):
                    is_sharded = stage.zero_stage >= (3 if kind == "weights" else 1)
                    owner = ("tied", weight.tied_to) if weight.tied_to else (span.first, operator.name, weight.name)
                    if weight.name == "table" and span.block == "embedding":
                        owner = ("tied", "embedding/embed/table")
                    split = splits.get((span.block, operator.name))
                    for index in elements_of(operator, weight, split, stage.axes, number, is_sharded=is_sharded):
                        found[kind].setdefault((*owner, index), set()).add(rank)
    return found


def range_of(stage: Stage) -> range:
    return range(stage.devices[0].first, stage.devices[0].first + stage.devices[0].count)


def elements_of(
    operator: Operator, weight: Weight, split: str | None, axes: Axes, number: int, *, is_sharded: bool
) -> Iterator[tuple[int, ...]]:
    """Indices of the elements that the ``number``-th rank of a stage holds."""
    t, z = number % axes.tp, number // axes.tp
    held: list[list[int]] = []
    longest = []
    for dim in weight.dims:
        size = DIMS[dim]
        mine = list(range(size))
        most = size
        if dim == split or (dim, split) == ("kv_heads", "heads"):
            share = -(-size // axes.tp)
            mine = [i for i in mine if (i // share == t if size >= axes.tp else i == t * size // axes.tp)]
            most = share
        if dim == "experts":
            share = size // axes.ep
            mine, most = [i for i in mine if i // share == z % axes.ep], share
        held.append(mine)
        longest.append(most)
    if is_sharded:
        is_expert = "experts" in weight.dims
        parts = axes.dp * axes.cp // (axes.ep if is_expert else 1)
        part = z // axes.ep if is_expert else z
        place = longest.index(max(longest))
        length = len(held[place])
        held[place] = held[place][length * part // parts : length * (part + 1) // parts]
    yield from itertools.product(*held)


def by_hand(old: AnsweredRequest, new: AnsweredRequest, devices: list[int | None]) -> dict[str, dict[str, np.ndarray]]:
    """Every element, every receiver: kept where it is, else taken from holders of its node, else from all holders, evenly."""
    on = new.request.cluster
    names = ("kept", "from_node", "from_network", "from_storage", "to_node", "to_network")
    before, after = holders(old), holders(new)
    result = {kind: {name: np.zeros(on.n_devices) for name in names} for kind in before}
    for kind, wanted in after.items():
        sums, each = result[kind], BYTES[kind]
        for element, receivers in wanted.items():
            have = {device for rank in before[kind][element] if (device := devices[rank]) is not None}
            for receiver in receivers:
                near = {device for device in have if on.node_of(device) == on.node_of(receiver)}
                if receiver in have:
                    sums["kept"][receiver] += each
                elif not have:
                    sums["from_storage"][receiver] += each
                else:
                    where = "node" if near else "network"
                    sums[f"from_{where}"][receiver] += each
                    for sender in near or have:
                        sums[f"to_{where}"][sender] += each / len(near or have)
    return result


def assert_equal(switch: Switch, expected: dict[str, dict[str, np.ndarray]]) -> None:
    for kind, sums in expected.items():
        for name, values in sums.items():
            assert getattr(getattr(switch, kind), name) == pytest.approx(values, abs=1e-6), (kind, name)


@pytest.mark.parametrize("seed", range(30))
def test_bytes_are_those_of_every_single_element(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = model(tied=seed % 2 == 1)
    old_cluster, new_cluster = cluster(int(rng.choice([4, 6, 8]))), cluster(int(rng.choice([3, 6])), int(rng.choice([2, 4])))
    old = answered(rng, graph, n_devices=old_cluster.n_devices, on=old_cluster)
    new = answered(rng, graph, n_devices=new_cluster.n_devices, on=new_cluster)
    devices: list[int | None] = [rank if rank < new_cluster.n_devices else None for rank in range(old_cluster.n_devices)]
    assert_equal(switch_bytes(old, new), by_hand(old, new, devices))


@pytest.mark.parametrize("seed", range(8))
def test_devices_may_be_renumbered_and_lost(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, on = model(), cluster(6)
    old, new = (answered(rng, graph, n_devices=on.n_devices, on=on) for _ in range(2))
    lost = set(rng.permutation(on.n_devices)[:3].tolist())
    places = iter(rng.permutation(on.n_devices).tolist())
    devices = [None if rank in lost else next(places) for rank in range(on.n_devices)]
    assert_equal(switch_bytes(old, new, device_of_old_rank=devices), by_hand(old, new, devices))


@pytest.mark.parametrize("seed", range(10))
def test_what_is_received_is_what_is_sent_and_all_state_is_there(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    graph, on = model(), cluster(6)
    old, new = (answered(rng, graph, n_devices=12, on=on) for _ in range(2))
    switch = switch_bytes(old, new)
    assert switch.storage_bytes == 0.0
    assert switch.moved_bytes == pytest.approx(float(switch.total.sent.sum()))
    held = sum(BYTES[kind] * len(ranks) for kind, elements in holders(new).items() for ranks in elements.values())
    assert switch.moved_bytes + float(switch.total.kept.sum()) == pytest.approx(held)


def test_the_same_plan_moves_nothing() -> None:
    rng = np.random.default_rng(5)
    plan = answered(rng, model(tied=True), n_devices=12, on=cluster(6))
    switch = switch_bytes(plan, plan)
    assert (switch.moved_bytes, switch.kept_share, switch.time_s) == (0.0, 1.0, 0.0)


def test_twice_the_tensor_parallelism_by_hand() -> None:
    """tp 1 to tp 2 of a table of 10 x 8 on one device each: the second device takes 5 of 10 rows from the first."""
    embedding, head = embedding_block(), head_block()
    graph = ModelGraph("ends", DIMS, (embedding, head), (BlockRun("embedding"), BlockRun("head")))
    rng = np.random.default_rng(0)
    one = answered(rng, graph, n_devices=1, on=cluster(1))
    axes = Axes(tp=2)
    stage = replace(flat(one.plan).stages[0], axes=axes, devices=(DeviceRange(0, 2),), zero_stage=0)
    shardings = (OperatorSharding("embedding", "embed", "vocab"), OperatorSharding("head", "lm_head", "vocab"))
    two = replace(one, plan=with_fields(one.plan, axes=axes, stages=(stage,), shardings=shardings))
    switch = switch_bytes(one, two)
    assert switch.weights.from_node.tolist() == [0.0, 2 * 2.0 * 5 * 8]
    assert switch.optimizer.to_node.tolist() == [2 * 12.0 * 5 * 8, 0.0]
    assert switch.network_s == 0.0 < switch.fabric_s == switch.time_s


def test_muon_leaves_two_moments_to_the_table_and_one_to_the_layers() -> None:
    rng = np.random.default_rng(3)
    adam = answered(rng, model(), n_devices=1, on=cluster(1))
    workload = adam.request.workload
    muon = replace(adam, request=replace(adam.request, workload=replace(workload, optimizer=Optimizer.MUON)))
    of_ends = 2 * DIMS["vocab"] * DIMS["hidden"]
    elements = len(holders(adam)["optimizer"])
    assert switch_bytes(muon, muon).optimizer.kept.sum() == 12.0 * of_ends + 8.0 * (elements - of_ends)


def test_state_of_another_kind_is_refused() -> None:
    rng = np.random.default_rng(1)
    plan = answered(rng, model(), n_devices=4, on=cluster(2))
    workload = plan.request.workload
    other = replace(plan, request=replace(plan.request, workload=replace(workload, optimizer=Optimizer.MUON)))
    with pytest.raises(PlanFileError, match=r"workload\.optimizer"):
        switch_bytes(plan, other)
    with pytest.raises(PlanFileError, match="different models"):
        switch_bytes(plan, answered(rng, ModelGraph("m", DIMS, model().blocks, model().chain[:3]), n_devices=4, on=cluster(2)))
    with pytest.raises(PlanFileError, match="new plan has no training stages"):
        switch_bytes(plan, replace(plan, plan=replace(plan.plan, layout=None)))
    with pytest.raises(PlanFileError, match="different ranks"):
        switch_bytes(plan, plan, device_of_old_rank=[0, 0, 1, 2])
