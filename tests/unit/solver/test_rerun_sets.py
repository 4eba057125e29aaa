"""The sets of operators that take least time to run again: against every set there is."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace

import pytest

from meshwright.app.models.catalog import model
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup, group_topology
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.units import DType
from meshwright.solver.blocks.recompute import kept_tensors, rerunnable
from meshwright.solver.blocks.rerun_sets import RerunSet, least_time_sets, together, told_apart
from meshwright.solver.blocks.setting import BlockSetting
from meshwright.solver.blocks.sharding_problem import BlockProblem, Criterion, build_block_problem, evaluate, with_modules
from meshwright.solver.blocks.tp_strategies import REPLICATED, sharded
from meshwright.solver.problem.choices import OperatorSolver, Recompute, Space
from meshwright.solver.problem.graph import Block, ModelGraph
from meshwright.solver.sharding_problem.frontier import OperatorSearch

CLUSTER = Cluster((NodeGroup("node", node_type("dgx-h100"), 1),))
LIGHT = Recompute.FINE_GRAINED


def setting(tp: int, *, sequence_parallel: bool = False) -> BlockSetting:
    return BlockSetting(
        device=CLUSTER.groups[0].node.device,
        tp_topology=group_topology(CLUSTER, n=tp, stride=1),
        ring_topology=group_topology(CLUSTER, n=1, stride=1),
        dtype=DType.BF16,
        gradient_dtype=DType.FP32,
        microbatch=1,
        seq_len=4096,
        boundary=sharded("seq") if sequence_parallel else REPLICATED,
        space=Space.LAUNCHABLE,
    )


def priced(
    graph: ModelGraph, block: Block, at: BlockSetting, usual: BlockProblem, operators: Collection[str]
) -> tuple[float, float]:
    """Seconds and bytes of a set, as the search of plans has them, from its problem of the usual modules."""
    built = with_modules(graph, block, replace(at, modules=tuple(sorted(operators))), usual)
    cost = evaluate(built.problem, [0] * len(block.operators))
    return cost[Criterion.FINE_GRAINED_S], cost[Criterion.FINE_GRAINED_BYTES]


def layer_of(name: str) -> tuple[ModelGraph, Block]:
    graph = model(name)
    return graph, graph.block(graph.layers[len(graph.layers) // 2])


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt2"])
def test_no_set_beats_those_that_are_found(name: str, sequence_parallel: bool) -> None:
    """All 2^n sets of a layer's operators, priced as plans are: none has less of one without more of the other."""
    graph, block = layer_of(name)
    at = setting(4, sequence_parallel=sequence_parallel)
    usual = build_block_problem(graph, block, at)
    assert usual is not None
    found = [priced(graph, block, at, usual, each.operators) for each in least_time_sets(graph, block, at)]
    names = rerunnable(block)
    seen: set[tuple[frozenset[str], frozenset[str]]] = set()
    for size in range(len(names) + 1):
        for each in itertools.combinations(names, size):
            kept = kept_tensors(block, LIGHT, modules=each)
            if (kept.tensors, kept.reruns) in seen:
                continue
            seen.add((kept.tensors, kept.reruns))
            seconds, kept_bytes = priced(graph, block, at, usual, each)
            assert any(a <= seconds * (1 + 1e-9) and b <= kept_bytes * (1 + 1e-9) for a, b in found), each


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt2"])
@pytest.mark.parametrize("solver", [OperatorSolver.ILP, OperatorSolver.CP_SAT])
def test_every_solver_finds_them(name: str, solver: OperatorSolver) -> None:
    """To a ten-thousandth of the largest time and size: programs take what differs by less as equal."""
    graph, block = layer_of(name)
    by_elimination = least_time_sets(graph, block, setting(1))
    by_program = least_time_sets(graph, block, setting(1), OperatorSearch(solver))
    close_s, close_bytes = 1e-4 * by_elimination[-1].seconds, 1e-4 * by_elimination[0].kept_bytes
    for mine, others in ((by_elimination, by_program), (by_program, by_elimination)):
        for each in mine:
            assert any(
                other.seconds <= each.seconds + close_s and other.kept_bytes <= each.kept_bytes + close_bytes
                for other in others
            ), each


def test_sets_of_several_blocks_are_best_at_one_price_of_a_byte() -> None:
    cheap, dear = ({name: RerunSet(frozenset(ops), s, b) for name, ops, s, b in sets} for sets in SETS)
    assert together([[*cheap.values()], [*dear.values()]]) == (
        frozenset(),
        frozenset({"a/norm"}),
        frozenset({"a/norm", "b/up"}),
        frozenset({"a/norm", "a/up", "b/up"}),
    )
    assert together([[*cheap.values()]]) == (frozenset(), frozenset({"a/norm"}), frozenset({"a/norm", "a/up"}))


def test_sets_that_save_nearly_the_same_are_one() -> None:
    sets = [RerunSet(frozenset({f"a/{n}"}), float(n), kept) for n, kept in enumerate((100.0, 99.0, 97.5, 96.0, 50.0, 49.0))]
    assert [each.kept_bytes for each in told_apart(sets)] == [100.0, 97.5, 50.0, 49.0]


SETS = (
    [("nothing", (), 0.0, 10.0), ("norm", ("a/norm",), 1.0, 5.0), ("both", ("a/norm", "a/up"), 9.0, 1.0)],
    # Its second set is above the line between its neighbours.
    [("nothing", (), 0.0, 10.0), ("bad", ("b/norm",), 4.0, 8.0), ("up", ("b/up",), 5.0, 0.0)],
)
