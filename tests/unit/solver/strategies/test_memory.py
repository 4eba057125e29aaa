"""The memory of a step over time, counted by hand on a graph of three operators."""

from __future__ import annotations

import pytest

from meshwright.costmodels.memory.training_state import state_bytes_per_parameter
from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.solver.strategies.graph_costs import GraphCosts, Kind, live_ranges
from meshwright.solver.strategies.operator_graph import Ties
from meshwright.solver.strategies.pricing import TrainingStep
from meshwright.solver.strategies.traffic import StateSplit
from tests.unit.solver.strategies.meshes import activation, elementwise, forced, graph_of, matmul, mesh_of

SIZES = {BATCH: 8, SEQ: 1024, "d0": 1024, "d1": 4096, "d2": 512}
GRAPH = graph_of(
    (
        matmul("up", activation("x", "d0"), activation("wide", "d1")),
        elementwise("act", (activation("wide", "d1"),), activation("acted", "d1")),
        matmul("down", activation("acted", "d1"), activation("y", "d2")),
    ),
    SIZES,
)


def test_live_ranges_are_those_of_the_step() -> None:
    held = live_ranges(GRAPH)
    ranges = {
        (int(n), Kind(k)): (int(s), int(e)) for n, k, s, e in zip(held.node, held.kind, held.start, held.end, strict=True)
    }
    # Times 0, 1, 2 are forward, 3, 4, 5 the backward passes of down, act, up.
    assert ranges[0, Kind.OUTPUT] == (0, 2)  # not saved: gone after act has read it
    assert ranges[1, Kind.OUTPUT] == (1, 4)  # saved by down, needed in its backward pass
    assert ranges[2, Kind.OUTPUT] == (2, 3)  # read by nobody
    assert ranges[0, Kind.GRADIENT] == (4, 6)
    assert ranges[1, Kind.GRADIENT] == (3, 5)
    assert (2, Kind.GRADIENT) not in ranges
    assert all(ranges[node, Kind.STATE] == (0, 6) for node in range(3))


@pytest.mark.parametrize("states", list(StateSplit))
def test_the_peak_is_what_is_held_at_the_fullest_time(states: StateSplit) -> None:
    n = 4
    step = TrainingStep(states=states)
    costs = GraphCosts(GRAPH, mesh_of(n), step, Ties.NONE)
    choices = forced(costs, {"up": ("batch",), "act": ("batch",), "down": ("batch",)})
    shards = n if states is StateSplit.SPLIT else 1
    state = state_bytes_per_parameter(
        precision=step.dtype, gradient_dtype=step.gradient_dtype, optimizer=step.optimizer, zero_stage=1, shards=shards
    )
    wide = 8 * 1024 * 4096 * 2 / n
    # Time 3: acted is still saved, and its gradient is made. Time 1 holds wide and acted: as much.
    assert costs.peak_bytes(choices) == (1024 * 4096 + 4096 * 512) * state.total + 2 * wide


def test_split_storage_holds_whole_weights_only_while_they_are_used() -> None:
    n = 4
    costs = GraphCosts(GRAPH, mesh_of(n), TrainingStep(), Ties.NONE)
    choices = forced(costs, {"up": ("batch+weights",), "act": ("batch",), "down": ("batch+weights",)})
    weights, up = 1024 * 4096 + 4096 * 512, 1024 * 4096
    wide = 8 * 1024 * 4096 * 2 / n
    # Time 5, the backward pass of up: 18 bytes a parameter split n ways, two copies of its weight and a whole gradient.
    assert costs.peak_bytes(choices) == pytest.approx(weights * 18 / n + up * (2 * 2 + 4) + wide)
