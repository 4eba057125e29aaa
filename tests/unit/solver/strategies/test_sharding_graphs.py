"""Sharding whole graphs: equal to exhaustive search where that is possible, and lawful everywhere."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.app.models import catalog
from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import Operator, Tensor, Weight
from meshwright.solver.sharding_problem.solve import SolveStatus
from meshwright.solver.sharding_problem.work import NoLimit, WorkLimit
from meshwright.solver.strategies.device_mesh import DeviceMesh
from meshwright.solver.strategies.graph_costs import GraphCosts, OperatorChoice, best_storages
from meshwright.solver.strategies.operator_graph import OperatorGraph, Ties, fold, one_block, unfolded
from meshwright.solver.strategies.pricing import TrainingStep
from meshwright.solver.strategies.solve import GraphSharding, shard_graph, step_ns
from tests.unit.solver.strategies.meshes import (
    LLAMA,
    activation,
    attention_layer,
    elementwise,
    graph_of,
    matmul,
    mesh_of,
    norm,
)

SMALL = {BATCH: 4, SEQ: 256, "d0": 512, "d1": 1024, "d2": 256}


def random_graph(seed: int, count: int) -> OperatorGraph:
    """Products, norms and sums that read earlier tensors."""
    rng = random.Random(seed)
    tensors = [activation("t0", "d0")]
    operators: list[Operator] = []
    for i in range(count):
        source = rng.choice(tensors[-2:])
        name, width = f"t{i + 1}", source.dims[-1]
        kind = rng.choice(("matmul", "matmul", "norm", "sum"))
        if kind == "matmul":
            target = activation(name, rng.choice([d for d in ("d0", "d1", "d2") if d != width]))
            operators.append(matmul(f"op{i}", source, target))
        elif kind == "norm":
            target = Tensor(name, source.dims)
            operators.append(norm(f"op{i}", source, name))
        else:
            target = Tensor(name, source.dims)
            others = [t for t in tensors if t.dims == source.dims and t is not source]
            operators.append(elementwise(f"op{i}", (source, *others[:1]), target))
        tensors.append(target)
    return graph_of(tuple(operators), SMALL)


def answer(costs: GraphCosts, memory_bytes: float | None = None) -> GraphSharding:
    return shard_graph(costs, memory_bytes=memory_bytes, stop=WorkLimit(1e9))


def fastest_by_hand(costs: GraphCosts, memory_bytes: float | None) -> int | None:
    """The least time of all choices that fit; with no limit the storages are those that are fastest."""
    options: list[list[OperatorChoice]] = []
    for index in range(len(costs.folding.members)):
        storages = costs.of_class(index).storages
        used = range(len(storages)) if memory_bytes is not None else list(best_storages(costs, index))
        options.append([OperatorChoice(storages[i].assignment, i) for i in used])
    return min(
        (
            step_ns(costs, choices)
            for choices in itertools.product(*options)
            if memory_bytes is None or costs.peak_bytes(choices) <= memory_bytes
        ),
        default=None,
    )


@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize("seed", range(12))
def test_equals_exhaustive_search(seed: int) -> None:
    costs = GraphCosts(random_graph(seed, 3), mesh_of(2, 2), TrainingStep(), Ties.NONE)
    found = answer(costs)
    assert found.status is SolveStatus.OPTIMAL
    assert found.step_s is not None
    assert round(found.step_s * 1e9) == fastest_by_hand(costs, None)


@pytest.mark.slow_beyond(2)
@pytest.mark.parametrize("seed", range(12))
def test_equals_exhaustive_search_within_memory(seed: int) -> None:
    costs = GraphCosts(random_graph(seed, 3), mesh_of(4), TrainingStep(), Ties.NONE)
    free = answer(costs)
    assert free.peak_bytes is not None
    for share in (0.9, 0.6, 0.4, 0.2):
        memory_bytes = free.peak_bytes * share
        by_hand = fastest_by_hand(costs, memory_bytes)
        found = answer(costs, memory_bytes)
        if by_hand is None:
            assert found.status is SolveStatus.INFEASIBLE
        else:
            assert found.status is SolveStatus.OPTIMAL
            assert found.step_s is not None and found.peak_bytes is not None and found.peak_bytes <= memory_bytes
            assert round(found.step_s * 1e9) == by_hand


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), faster=st.sampled_from([1.5, 2.0, 4.0]))
def test_faster_links_are_never_slower(seed: int, faster: float) -> None:
    graph = random_graph(seed, 4)
    slow, fast = (answer(GraphCosts(graph, mesh_of(2, 4, faster=f), TrainingStep())) for f in (1.0, faster))
    assert slow.step_s is not None and fast.step_s is not None
    assert fast.step_s <= slow.step_s
    assert fast.bound_s is not None and fast.bound_s <= fast.step_s


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), shares=st.tuples(st.floats(0.3, 1.0), st.floats(0.3, 1.0)))
def test_more_memory_is_never_slower(seed: int, shares: tuple[float, float]) -> None:
    costs = GraphCosts(random_graph(seed, 3), mesh_of(2, 2), TrainingStep())
    peak = answer(costs).peak_bytes
    assert peak is not None
    less, more = (answer(costs, peak * share) for share in sorted(shares))
    if less.step_s is not None:
        assert more.step_s is not None and more.step_s <= less.step_s
        assert less.bound_s is not None and less.bound_s <= less.step_s


def renamed(operator: Operator, names: dict[str, str]) -> Operator:
    def tensor(t: Tensor) -> Tensor:
        return Tensor(f"{t.name}'", tuple(names.get(d, d) for d in t.dims))

    return replace(
        operator,
        name=f"{operator.name}'",
        inputs=tuple(map(tensor, operator.inputs)),
        outputs=tuple(map(tensor, operator.outputs)),
        weights=tuple(Weight(w.name, tuple(names.get(d, d) for d in w.dims)) for w in operator.weights),
        saved=tuple(f"{name}'" for name in operator.saved),
    )


def test_names_of_dims_and_operators_change_nothing() -> None:
    names = {"hidden": "zulu", "heads": "alpha", "kv_heads": "mike", "head_dim": "bravo"}
    sizes = {names.get(dim, dim): size for dim, size in LLAMA.items()}
    plain = GraphCosts(graph_of(attention_layer(), LLAMA), mesh_of(2, 4), TrainingStep())
    other_graph = graph_of(tuple(renamed(op, names) for op in attention_layer()), sizes)
    other = GraphCosts(other_graph, mesh_of(2, 4), TrainingStep())
    assert answer(plain).step_s == answer(other).step_s
    assert answer(plain).choices == answer(other).choices


def test_names_of_axes_change_nothing() -> None:
    mesh = mesh_of(2, 4)
    other = DeviceMesh(tuple(replace(axis, name=f"{axis.name}'") for axis in mesh.axes), mesh.device)
    graph = graph_of(attention_layer(), LLAMA)
    plain, renamed_axes = (answer(GraphCosts(graph, m, TrainingStep())) for m in (mesh, other))
    assert plain.choices == renamed_axes.choices
    assert plain.step_s == renamed_axes.step_s


def repeated(layers: int) -> OperatorGraph:
    """Equal blocks one after another: a product that widens, a sum, a product that narrows."""
    operators: list[Operator] = [norm("first", activation("start", "d0"), "x0")]
    for layer in range(layers):
        x, up, act = activation(f"x{layer}", "d0"), activation(f"up{layer}", "d1"), activation(f"act{layer}", "d1")
        operators += [
            matmul(f"up{layer}", x, up),
            elementwise(f"act{layer}", (up,), act),
            matmul(f"down{layer}", act, activation(f"x{layer + 1}", "d0")),
        ]
    return graph_of(tuple(operators), SMALL)


def test_equal_blocks_fold_whatever_their_names() -> None:
    folding = fold(repeated(20), Ties.EQUAL_BLOCKS)
    assert len(folding.members) < 10
    assert max(len(members) for members in folding.members) >= 18
    assert sorted(node for members in folding.members for node in members) == list(range(61))


@pytest.mark.parametrize("share", [None, 0.9, 0.6])
def test_folded_costs_are_those_of_the_unfolded_graph(share: float | None) -> None:
    graph, mesh = repeated(5), mesh_of(2, 2)
    folded, unfolded_costs = (GraphCosts(graph, mesh, TrainingStep(), ties) for ties in (Ties.EQUAL_BLOCKS, Ties.NONE))
    free = answer(folded)
    assert free.peak_bytes is not None
    limit = None if share is None else free.peak_bytes * share
    tied, loose = answer(folded, limit), answer(unfolded_costs, limit)
    assert tied.choices is not None and tied.step_s is not None and loose.step_s is not None
    spread = [tied.choices[index] for index in folded.folding.class_of]
    assert step_ns(unfolded_costs, spread) == step_ns(folded, tied.choices) == round(tied.step_s * 1e9)
    assert unfolded_costs.peak_bytes(spread) == pytest.approx(folded.peak_bytes(tied.choices))
    assert loose.step_s <= tied.step_s


@pytest.mark.slow
def test_folding_equals_the_unfolded_graph_under_its_ties() -> None:
    graph, mesh = repeated(3), mesh_of(4)
    folded = GraphCosts(graph, mesh, TrainingStep(), Ties.EQUAL_BLOCKS)
    assert len(folded.folding.members) < len(graph.nodes)
    loose = GraphCosts(graph, mesh, TrainingStep(), Ties.NONE)
    options = [list(best_storages(folded, i)) for i in range(len(folded.folding.members))]
    by_hand = min(
        step_ns(loose, [OperatorChoice(picked[c], options[c][picked[c]]) for c in folded.folding.class_of])
        for picked in itertools.product(*(range(len(storages)) for storages in options))
    )
    found = answer(folded)
    assert found.step_s is not None and round(found.step_s * 1e9) == by_hand


def test_a_layer_is_priced_once_however_often_it_repeats() -> None:
    model = catalog.model("llama-3.1-405b")
    graph = unfolded(model, batch=64, seq_len=4096)
    assert len(graph.nodes) == 126 * 11 + 4
    costs = GraphCosts(graph, mesh_of(8, 8), TrainingStep())
    assert len(costs.folding.members) < 3 * 11
    found = shard_graph(costs, memory_bytes=None, stop=NoLimit())
    assert found.status is SolveStatus.OPTIMAL


def test_what_does_not_fit_is_proven_not_to() -> None:
    model = catalog.model("llama-3.1-8b")
    costs = GraphCosts(one_block(model, "layer", batch=8, seq_len=4096), mesh_of(2, 2), TrainingStep())
    found = answer(costs, 1e6)
    assert found.status is SolveStatus.INFEASIBLE
    assert found.choices is None and found.gap is None


def test_an_encoder_decoder_is_sharded_with_what_its_decoder_reads() -> None:
    model = read_huggingface_config({"model_type": "t5", "num_layers": 2, "num_decoder_layers": 3}, name="t5")
    graph = unfolded(model, batch=16, seq_len=256)
    names = [f"{node.layer}/{node.operator.name}" for node in graph.nodes]
    readers = {names[edge.target] for edge in graph.edges if names[edge.source] == "3/encoder_norm"}
    assert readers == {f"{layer}/cross_kv_proj" for layer in (5, 6, 7)}
    # The decoder's stream starts at its own embedding.
    streams = [names[edge.source] for edge in graph.edges if names[edge.target] == "5/attn_norm"]
    assert streams == ["4/embed"]
    found = answer(GraphCosts(graph, mesh_of(2, 4), TrainingStep()))
    assert found.status is SolveStatus.OPTIMAL
