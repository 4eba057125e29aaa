"""Stages of branching models: equal to exhaustive search over downsets, and on a chain to the partition of chains."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from meshwright.app.models.huggingface import read_huggingface_config
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.problem.layer_dag import LayerDag, chain_dag, downsets, layer_dag
from meshwright.solver.stages import memory_shortage, objective_s, partition_layers
from meshwright.solver.training.search.partition import DagFigures, dag_shortage, partition_dag

T5 = {"model_type": "t5", "num_layers": 3, "num_decoder_layers": 4}


def random_dag(rng: random.Random, n_layers: int) -> LayerDag:
    """Each layer continues an earlier one or none, and may read others."""
    entries: list[int | None] = [None]
    sides: list[tuple[int, ...]] = [()]
    for layer in range(1, n_layers):
        entry = rng.choice([None, *range(layer), layer - 1, layer - 1])
        others = [other for other in range(layer) if other != entry]
        entries.append(entry)
        sides.append(tuple(sorted(rng.sample(others, min(len(others), rng.choice([0, 0, 1, 2]))))))
    return LayerDag(tuple(entries), tuple(sides))


def random_figures(rng: random.Random, dag: LayerDag, n_stages: int, n_configs: int = 2) -> DagFigures:
    def some(*shape: int, low: int = 1, high: int = 9) -> np.ndarray:
        return np.array([float(rng.randint(low, high)) for _ in range(math.prod(shape))]).reshape(shape)

    n = dag.n_layers
    barred = np.array([[rng.random() < 0.2 for _ in range(n)] for _ in range(n_stages)])
    return DagFigures(
        time_s=some(n_stages, n_configs, n),
        static_bytes=some(n),
        activation_bytes=some(n_configs, n),
        transient_bytes=some(n_configs, n, low=0),
        extra_s=some(n_stages, n, low=0, high=3),
        boundary_s=some(n_stages, low=0, high=3),
        step_s=some(n_stages, low=0, high=3),
        beside_s=some(n_stages, low=0, high=15) * rng.choice([0, 1]),
        capacity_bytes=some(n_stages, low=20, high=120),
        in_flight=np.arange(n_stages, 0, -1),
        side_bytes=float(rng.randint(0, 4)),
        parameters=some(n),
        most_parameters=rng.choice([math.inf, 12.0, 18.0]),
        barred=rng.choice([None, None, barred]),
    )


def by_hand(dag: LayerDag, figures: DagFigures, m: int, waiting: float) -> tuple[float | None, float]:
    """The least objective of all splits that fit, and the least shortage of all splits, written as the docstrings say."""
    assert figures.parameters is not None
    n_stages, n_configs = figures.time_s.shape[:2]
    best: float | None = None
    least = math.inf
    for stage_of in itertools.product(range(n_stages), repeat=dag.n_layers):
        if len(set(stage_of)) < n_stages:
            continue
        if any(stage_of[source] > stage_of[layer] for layer in range(dag.n_layers) for source in dag.reads[layer]):
            continue
        members = [[layer for layer, stage in enumerate(stage_of) if stage == s] for s in range(n_stages)]
        for configs in itertools.product(range(n_configs), repeat=n_stages):
            times, hidden, extras, shorts = [], [], [], []
            for s, (layers, config) in enumerate(zip(members, configs, strict=True)):
                done = [layer for layer, stage in enumerate(stage_of) if stage <= s]
                sent = {u for u in done for v in range(dag.n_layers) if u in dag.reads[v] and v not in done}
                computing = figures.time_s[s, config, layers].sum() + figures.boundary_s[s] * max(1, len(sent))
                sending = figures.beside_s[s] * max(1, len(sent))
                times.append(max(computing, sending))
                hidden.append(min(computing, sending))
                extras.append(figures.extra_s[s, layers].sum() + figures.step_s[s])
                beside = {side for layer in layers for side in dag.sides[layer]}
                kept = figures.activation_bytes[config, layers].sum() + figures.side_bytes * len(beside)
                need = figures.static_bytes[layers].sum() + figures.in_flight[s] * kept
                shorts.append(need + figures.transient_bytes[config, layers].max() - figures.capacity_bytes[s])
            least = min(least, max(shorts))
            holds_too_much = max(figures.parameters[layers].sum() for layers in members) > figures.most_parameters
            held = figures.barred is None or not any(figures.barred[s, layers].any() for s, layers in enumerate(members))
            if max(shorts) <= 0 and held and not holds_too_much:
                value = objective_s(times, extras, m, waiting=waiting, hidden_s=hidden)
                best = value if best is None else min(best, value)
    return best, least


@pytest.mark.parametrize("seed", range(60))
def test_equals_every_split_tried(seed: int) -> None:
    rng = random.Random(seed)
    dag = random_dag(rng, rng.randint(2, 6))
    n_stages = rng.randint(1, min(3, dag.n_layers))
    figures = random_figures(rng, dag, n_stages)
    m, waiting = rng.randint(1, 8), rng.choice([1.0, 0.5])
    best, least = by_hand(dag, figures, m, waiting)
    found = partition_dag(dag, figures, n_microbatches=m, waiting=waiting)
    stage, need, have = dag_shortage(dag, figures)
    assert need - have == pytest.approx(least)
    assert have == figures.capacity_bytes[stage]
    if best is None:
        assert found is None
        return
    assert found is not None
    assert found.objective_s == pytest.approx(best)
    assert sorted(layer for s in found.stages for layer in s.layers) == list(range(dag.n_layers))


@pytest.mark.parametrize("seed", range(40))
def test_a_chain_is_split_as_chains_are(seed: int) -> None:
    rng = random.Random(seed)
    dag = chain_dag(rng.randint(2, 9))
    figures = replace(random_figures(rng, dag, rng.randint(1, min(4, dag.n_layers))), barred=None)
    m = rng.randint(1, 9)
    found = partition_dag(dag, figures, n_microbatches=m)
    own = partition_layers(
        time_s=figures.time_s,
        static_bytes=figures.static_bytes,
        activation_bytes=figures.activation_bytes,
        transient_bytes=figures.transient_bytes,
        extra_s=figures.extra_s,
        boundary_s=figures.boundary_s,
        step_s=figures.step_s,
        beside_s=figures.beside_s,
        capacity_bytes=figures.capacity_bytes,
        in_flight=figures.in_flight,
        n_microbatches=m,
        parameters=figures.parameters,
        most_parameters=figures.most_parameters,
    )
    short = memory_shortage(
        static_bytes=figures.static_bytes,
        activation_bytes=figures.activation_bytes,
        transient_bytes=figures.transient_bytes,
        capacity_bytes=figures.capacity_bytes,
        in_flight=figures.in_flight,
    )
    assert short is not None
    _, need, have = dag_shortage(dag, figures)
    assert need - have == pytest.approx(short.need_bytes - short.have_bytes)
    assert (found is None) == (own is None)
    if found is not None and own is not None:
        assert found.objective_s == pytest.approx(own.objective_s)


def test_more_room_and_fewer_tensors_are_never_slower() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        dag = random_dag(rng, 6)
        figures = random_figures(rng, dag, 2)
        found = partition_dag(dag, figures, n_microbatches=4)
        if found is None:
            continue
        for easier in (replace(figures, capacity_bytes=2 * figures.capacity_bytes), replace(figures, side_bytes=0.0)):
            other = partition_dag(dag, easier, n_microbatches=4)
            assert other is not None and other.objective_s <= found.objective_s * (1 + 1e-12)


def test_an_encoder_decoder_is_read_as_it_branches() -> None:
    dag = layer_dag(read_huggingface_config(T5, name="t5"))
    # embedding, 3 encoder layers, their norm, embedding of the decoder, 4 layers, head
    assert dag.entries == (None, 0, 1, 2, 3, None, 5, 6, 7, 8, 9)
    assert dag.sides == ((),) * 6 + ((4,),) * 4 + ((),)
    assert dag.sent_after(range(5)) == 1
    # Between two layers of the decoder the stream goes on, and what the encoder wrote.
    assert dag.sent_after(range(8)) == 2
    assert dag.held_sides((6, 7)) == dag.held_sides((6,)) == 1
    assert dag.held_sides((10,)) == 0
    # The decoder's embedding may run at any time before its first layer.
    assert len(downsets(dag, most=100) or []) == 2 * 6 + 5


def test_a_chain_has_one_downset_a_layer() -> None:
    assert len(downsets(chain_dag(7), most=100) or []) == 8
    assert chain_dag(7).is_chain


def test_too_many_branches_are_refused() -> None:
    wide = LayerDag((None,) * 12, ((),) * 12)
    with pytest.raises(InvalidInputError, match="too many ways"):
        partition_dag(wide, random_figures(random.Random(0), wide, 2), n_microbatches=1)
