"""`partition_layers` against enumeration, and the laws it must obey."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.stages import memory_shortage, partition_layers
from tests.unit.solver.pins import holds_pins, random_pins

Problem = dict[str, Any]
MEMORY_KEYS = ("static_bytes", "activation_bytes", "transient_bytes", "capacity_bytes", "in_flight")


def random_problem(seed: int) -> Problem:
    """A small problem with unequal blocks; one in two has memory so tight that configs matter or nothing fits."""
    rng = np.random.default_rng(seed)
    n_blocks, n_stages, n_configs = rng.integers(1, 8), rng.integers(1, 5), rng.integers(1, 4)
    slower = np.sort(rng.uniform(1, 1.5, n_configs))[:, None]
    smaller = np.sort(rng.uniform(0.1, 1, n_configs))[::-1, None]
    in_flight = np.minimum(np.arange(n_stages, 0, -1), rng.integers(1, 5))
    need = 5 * n_blocks / n_stages * (1 + in_flight.mean())
    time_s = slower * rng.choice([rng.uniform(0, 2, n_blocks), np.ones(n_blocks)])
    scale = rng.choice([np.ones(n_stages), rng.uniform(0.5, 2, n_stages)])[:, None, None]
    drawn = np.random.default_rng([seed, 1])
    return {
        "time_s": scale * time_s * rng.choice([1.0, 1.1], (n_stages, 1, n_blocks)),
        "static_bytes": rng.uniform(0, 8, n_blocks),
        "activation_bytes": smaller * rng.uniform(2, 8, n_blocks),
        "transient_bytes": rng.uniform(0, 4, (n_configs, n_blocks)),
        "extra_s": rng.choice([0.0, 1.0, 10.0]) * rng.uniform(0, 1, (n_stages, n_blocks)),
        "boundary_s": rng.choice([0.0, 0.1], n_stages),
        "step_s": rng.choice([0.0, 0.5], n_stages),
        "beside_s": rng.choice([0.0, 0.0, 2.0]) * rng.uniform(0, 2, n_stages),
        "capacity_bytes": need * rng.choice([0.4, 0.7, 1.0, 10.0]) * rng.uniform(0.8, 1.2, n_stages),
        "in_flight": in_flight,
        "n_microbatches": int(rng.choice([1, 2, 8, 64])),
        "parameters": rng.integers(1, 9, n_blocks).astype(np.float64),
        "most_parameters": float(rng.choice([math.inf, math.inf, 8.0, 16.0])),
        "pinned": random_pins(drawn, int(n_blocks), int(n_stages)),
    }


def every_split(problem: Problem) -> Iterator[tuple[float, float]]:
    """(objective, largest need - capacity) of every split and config choice, straight from the definition; infinite objectives
    of splits with too many parameters on a stage, or a layer on another than it is pinned to."""
    time, static, activation = problem["time_s"], problem["static_bytes"], problem["activation_bytes"]
    _, n_configs, n_blocks = time.shape
    n_stages = len(problem["capacity_bytes"])
    for cuts in itertools.combinations(range(1, n_blocks), n_stages - 1):
        spans = [slice(a, b) for a, b in itertools.pairwise((0, *cuts, n_blocks))]
        for configs in itertools.product(range(n_configs), repeat=n_stages):
            t = [
                time[i, c, span].sum() + problem["boundary_s"][i]
                for i, (span, c) in enumerate(zip(spans, configs, strict=True))
            ]
            steady = [max(time_s, problem["beside_s"][i]) for i, time_s in enumerate(t)]
            t = [time_s + problem["beside_s"][i] for i, time_s in enumerate(t)]
            d = [problem["extra_s"][i, span].sum() + problem["step_s"][i] for i, span in enumerate(spans)]
            short = max(
                static[span].sum()
                + problem["in_flight"][i] * activation[c, span].sum()
                + problem["transient_bytes"][c, span].max()
                - problem["capacity_bytes"][i]
                for i, (span, c) in enumerate(zip(spans, configs, strict=True))
            )
            last = max(d[i] - sum(t[:i]) for i in range(n_stages))
            if max(problem["parameters"][span].sum() for span in spans) > problem["most_parameters"]:
                last = math.inf
            if not holds_pins(problem["pinned"], [range(n_blocks)[span] for span in spans]):
                last = math.inf
            yield sum(t) + (problem["n_microbatches"] - 1) * max(steady) + last, short


def memory_of(problem: Problem) -> Problem:
    return {key: problem[key] for key in MEMORY_KEYS}


@pytest.mark.slow_beyond(60)
@pytest.mark.parametrize("seed", range(300))
def test_equals_enumeration(seed: int) -> None:
    problem = random_problem(seed)
    splits = list(every_split(problem)) if problem["time_s"].shape[-1] >= len(problem["capacity_bytes"]) else []
    best_s = min((objective for objective, short in splits if short <= 0 and math.isfinite(objective)), default=None)

    found = partition_layers(**problem)

    if best_s is None:
        assert found is None
    else:
        assert found is not None
        assert found.objective_s == pytest.approx(best_s, rel=1e-9)
        assert found.bound_s == found.objective_s
        assert_stages_add_up(problem, found.stages, found.objective_s)


def assert_stages_add_up(problem: Problem, stages: tuple[Any, ...], objective_s: float) -> None:
    assert [stage.first for stage in stages] == [0, *(stage.last + 1 for stage in stages[:-1])]
    assert stages[-1].last == problem["time_s"].shape[-1] - 1
    ways = []
    for i, stage in enumerate(stages):
        span = slice(stage.first, stage.last + 1)
        blocks_s = problem["time_s"][i, stage.config, span].sum()
        computing_s, beside_s = blocks_s + problem["boundary_s"][i], problem["beside_s"][i]
        assert stage.time_s == pytest.approx(max(computing_s, beside_s))
        ways.append(computing_s + beside_s)
        assert stage.extra_s == pytest.approx(problem["extra_s"][i, span].sum() + problem["step_s"][i])
        assert stage.memory_bytes <= problem["capacity_bytes"][i] * (1 + 1e-9)
    last = max(stage.extra_s - sum(ways[:i]) for i, stage in enumerate(stages))
    longest_s = max(stage.time_s for stage in stages)
    assert objective_s == pytest.approx(sum(ways) + (problem["n_microbatches"] - 1) * longest_s + last)


@pytest.mark.parametrize("seed", range(100))
def test_shortage_equals_enumeration(seed: int) -> None:
    problem = random_problem(seed)
    shortage = memory_shortage(**memory_of(problem))
    if problem["time_s"].shape[-1] < len(problem["capacity_bytes"]):
        assert shortage is None
        return
    least = min(short for _, short in every_split(problem))
    assert shortage is not None
    assert shortage.need_bytes - shortage.have_bytes == pytest.approx(least, abs=1e-9)
    assert shortage.have_bytes == problem["capacity_bytes"][shortage.stage]


def best_s(problem: Problem) -> float:
    found = partition_layers(**problem)
    return math.inf if found is None else found.objective_s


@given(seed=st.integers(0, 10**6), stage=st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_more_memory_is_never_slower(seed: int, stage: int) -> None:
    problem = random_problem(seed)
    more = problem["capacity_bytes"].copy()
    more[stage % len(more)] *= 1.5
    assert best_s({**problem, "capacity_bytes": more}) <= best_s(problem) * (1 + 1e-9)


@given(seed=st.integers(0, 10**6), block=st.integers(0, 7))
@settings(max_examples=100, deadline=None)
def test_a_faster_block_is_never_slower(seed: int, block: int) -> None:
    problem = random_problem(seed)
    faster = problem["time_s"].copy()
    faster[:, :, block % faster.shape[2]] *= 0.5
    assert best_s({**problem, "time_s": faster}) <= best_s(problem) * (1 + 1e-9)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_the_order_of_configs_does_not_matter(seed: int) -> None:
    problem = random_problem(seed)
    turned = {key: problem[key][::-1] for key in ("activation_bytes", "transient_bytes")}
    turned["time_s"] = problem["time_s"][:, ::-1]
    assert best_s({**problem, **turned}) == pytest.approx(best_s(problem), rel=1e-9)


def test_uneven_devices_get_uneven_stages() -> None:
    """A device half as fast, in the middle, gets half the blocks."""
    found = partition_layers(
        time_s=np.array([1.0, 2.0, 1.0])[:, None, None] * np.ones((3, 1, 10)),
        static_bytes=np.zeros(10),
        activation_bytes=np.zeros((1, 10)),
        transient_bytes=np.zeros((1, 10)),
        extra_s=np.zeros(10),
        boundary_s=0.0,
        capacity_bytes=[1, 1, 1],
        in_flight=[3, 2, 1],
        n_microbatches=100,
    )
    assert found is not None
    assert [stage.last - stage.first + 1 for stage in found.stages] == [4, 2, 4]
    assert found.objective_s == 4 + 4 + 4 + 99 * 4


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("time_s", [1.0, 2.0], "bad shape of time_s"),
        ("static_bytes", [1.0, -1.0], "bad figure in static_bytes"),
        ("activation_bytes", [[1.0, math.inf]], "bad figure in activation_bytes"),
        ("extra_s", [1.0], "bad shape of extra_s"),
        ("capacity_bytes", [math.nan], "bad capacity_bytes"),
        ("in_flight", [0], "bad in_flight"),
        ("in_flight", [1.0], "bad in_flight"),
        ("n_microbatches", 0, "bad number of micro-batches"),
        ("boundary_s", -1.0, "bad figure in boundary_s"),
    ],
)
def test_bad_input_is_named(key: str, value: object, words: str) -> None:
    problem: Problem = {
        "time_s": [[1.0, 1.0]],
        "static_bytes": [1.0, 1.0],
        "activation_bytes": [[1.0, 1.0]],
        "transient_bytes": [[1.0, 1.0]],
        "extra_s": [0.0, 0.0],
        "boundary_s": 0.0,
        "capacity_bytes": [10.0],
        "in_flight": [1],
        "n_microbatches": 2,
    }
    assert partition_layers(**problem) is not None
    with pytest.raises(InvalidInputError, match=words):
        partition_layers(**{**problem, key: value})
