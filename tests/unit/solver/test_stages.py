"""`partition` against enumeration, and the laws it must obey."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.stages import Partition, objective_s, partition
from tests.unit.solver.pins import holds_pins, random_pins

Problem = dict[str, Any]
TABLES = ("times_s", "max_in_flight", "extra_s")


def random_problem(seed: int) -> Problem:
    """A small table: ties, impossible entries, loose or tight memory, with or without extras and allowed stage counts."""
    rng = np.random.default_rng(seed)
    n_blocks, n_configs = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    submesh_devices = rng.permutation([1, 2, 2, 4])[: rng.integers(1, 5)]
    shape = (n_blocks, n_blocks, len(submesh_devices), n_configs)
    length = 1 + np.arange(n_blocks)[None, :] - np.arange(n_blocks)[:, None]
    times = length[:, :, None, None] / submesh_devices[None, None, :, None] ** 0.7 * rng.uniform(0.8, 1.2, shape)
    if rng.random() < 0.4:
        times = rng.integers(0, 5, shape).astype(np.float64)
    times[rng.random(shape) < rng.choice([0.0, 0.2, 0.5])] = np.inf
    times[length < 1] = np.inf
    problem: Problem = {
        "times_s": times,
        "max_in_flight": rng.integers(-1, rng.choice([2, 4, 12]), shape),
        "submesh_devices": submesh_devices,
        "n_devices": int(rng.integers(1, 9)),
        "n_microbatches": int(rng.choice([1, 2, 8, 64])),
    }
    if rng.random() < 0.6:
        problem["extra_s"] = rng.choice([1.0, 10.0]) * rng.uniform(0, 1, shape)
    places = np.random.default_rng([seed, 1])
    if places.random() < 0.4:
        lowest = places.integers(0, 3, len(submesh_devices))
        problem["devices_before"] = np.stack([lowest, lowest + places.integers(-1, 8, len(submesh_devices))], axis=1).clip(0)
    if rng.random() < 0.3:
        problem["stage_counts"] = set(rng.choice(np.arange(1, 7), int(rng.integers(1, 4))).tolist())
    if places.random() < 0.3:
        problem["pinned"] = random_pins(places, n_blocks, min(n_blocks, 3))
    return problem


def every_partition(problem: Problem) -> Iterator[float]:
    """The objective of every possible partition, straight from the definition."""
    times, n_devices = problem["times_s"], problem["n_devices"]
    n_blocks, _, n_submeshes, n_configs = times.shape
    extras = problem.get("extra_s", np.zeros(times.shape))
    counts = problem.get("stage_counts", range(1, n_blocks + 1))
    places = problem.get("devices_before", [(0, n_devices)] * n_submeshes)

    def extend(first: int, devices: int, chosen: list[tuple[int, ...]]) -> Iterator[float]:
        if first == n_blocks:
            later = [len(chosen) - 1 - i for i in range(len(chosen))]
            fits = all(problem["max_in_flight"][c] >= q for c, q in zip(chosen, later, strict=True))
            held = [range(begin, end + 1) for begin, end, *_ in chosen]
            fits = fits and holds_pins(problem.get("pinned", ()), held)
            if devices == n_devices and fits and len(chosen) in counts:
                t, d = [times[c] for c in chosen], [extras[c] for c in chosen]
                last = max(d[i] - sum(t[:i]) for i in range(len(t)))
                yield sum(t) + (problem["n_microbatches"] - 1) * max(t) + last
            return
        for end in range(first, n_blocks):
            for s in range(n_submeshes):
                used = devices + problem["submesh_devices"][s]
                if not places[s][0] <= devices <= places[s][1]:
                    continue
                for c in range(n_configs):
                    if used <= n_devices and times[first, end, s, c] < math.inf:
                        yield from extend(end + 1, used, [*chosen, (first, end, s, c)])

    return extend(0, 0, [])


@pytest.mark.parametrize("seed", range(20))
def test_runs_that_cost_the_same_may_share_a_row(seed: int) -> None:
    problem = random_problem(seed)
    n_blocks = len(problem["times_s"])
    rows = np.random.default_rng(seed).integers(0, 3, (n_blocks, n_blocks))
    tables = {name: problem[name].reshape(-1, *problem[name].shape[2:])[:3] for name in TABLES if name in problem}
    tables = {name: np.resize(table, (3, *table.shape[1:])) for name, table in tables.items()}
    shared = partition(**problem | tables, row_of=rows)
    assert shared == partition(**problem | {name: table[rows] for name, table in tables.items()})


def test_rows_that_there_are_not_are_refused() -> None:
    problem = random_problem(1)
    tables = {name: problem[name].reshape(-1, *problem[name].shape[2:]) for name in TABLES if name in problem}
    n_blocks = len(problem["times_s"])
    with pytest.raises(InvalidInputError, match="row_of"):
        partition(**problem | tables, row_of=np.full((n_blocks, n_blocks), n_blocks**2))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(500))
def test_equals_enumeration(seed: int) -> None:
    problem = random_problem(seed)
    best_s = min(every_partition(problem), default=None)

    found = partition(**problem)

    if best_s is None:
        assert found is None
    else:
        assert found is not None
        assert found.objective_s == pytest.approx(best_s, rel=1e-9, abs=1e-12)
        assert found.bound_s == found.objective_s
        assert_is_a_partition(problem, found)


def assert_is_a_partition(problem: Problem, found: Partition) -> None:
    stages = found.stages
    assert [stage.first for stage in stages] == [0, *(stage.last + 1 for stage in stages[:-1])]
    assert stages[-1].last == problem["times_s"].shape[0] - 1
    assert sum(problem["submesh_devices"][stage.submesh] for stage in stages) == problem["n_devices"]
    assert len(stages) in problem.get("stage_counts", range(1, 100))
    assert holds_pins(problem.get("pinned", ()), [range(stage.first, stage.last + 1) for stage in stages])
    sizes = [int(problem["submesh_devices"][stage.submesh]) for stage in stages]
    for place, stage in enumerate(stages):
        fewest, most = problem["devices_before"][stage.submesh] if "devices_before" in problem else (0, 99)
        assert fewest <= sum(sizes[:place]) <= most
    for later, stage in enumerate(reversed(stages)):
        at = (stage.first, stage.last, stage.submesh, stage.config)
        assert stage.time_s == problem["times_s"][at]
        assert stage.extra_s == (problem["extra_s"][at] if "extra_s" in problem else 0)
        assert problem["max_in_flight"][at] >= later
    recomputed_s = objective_s([s.time_s for s in stages], [s.extra_s for s in stages], problem["n_microbatches"])
    assert found.objective_s == pytest.approx(recomputed_s, rel=1e-12)


def best_s(problem: Problem) -> float:
    found = partition(**problem)
    return math.inf if found is None else found.objective_s


@pytest.mark.slow
@given(seed=st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_more_memory_is_never_slower(seed: int) -> None:
    problem = random_problem(seed)
    more = problem["max_in_flight"] + np.random.default_rng(seed + 1).integers(0, 3, problem["max_in_flight"].shape)
    assert best_s({**problem, "max_in_flight": more}) <= best_s(problem) * (1 + 1e-9)


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), block=st.integers(0, 5))
@settings(max_examples=150, deadline=None)
def test_a_faster_block_is_never_slower(seed: int, block: int) -> None:
    problem = random_problem(seed)
    n_blocks = problem["times_s"].shape[0]
    block %= n_blocks
    faster = problem["times_s"].copy()
    faster[: block + 1, block:] *= 0.7  # the segments that hold the block
    assert best_s({**problem, "times_s": faster}) <= best_s(problem) * (1 + 1e-9)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_names_of_configs_and_submeshes_do_not_matter(seed: int) -> None:
    problem = random_problem(seed)
    rng = np.random.default_rng(seed)
    submeshes = rng.permutation(problem["times_s"].shape[2])
    configs = rng.permutation(problem["times_s"].shape[3])
    renamed = {
        key: problem[key][:, :, submeshes][:, :, :, configs]
        for key in ("times_s", "max_in_flight", "extra_s")
        if key in problem
    }
    for key in ("submesh_devices", "devices_before"):
        if key in problem:
            renamed[key] = problem[key][submeshes]
    assert best_s({**problem, **renamed}) == pytest.approx(best_s(problem), rel=1e-9)


@given(seed=st.integers(0, 10**6), factor=st.sampled_from([0.5, 2.0, 1024.0]))
@settings(max_examples=50, deadline=None)
def test_the_unit_of_time_does_not_matter(seed: int, factor: float) -> None:
    problem = random_problem(seed)
    scaled = {key: problem[key] * factor for key in ("times_s", "extra_s") if key in problem}
    first, second = partition(**problem), partition(**{**problem, **scaled})
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert second.objective_s == first.objective_s * factor
        assert [s.last for s in second.stages] == [s.last for s in first.stages]


def test_only_what_takes_less_is_found() -> None:
    problem = next(p for p in map(random_problem, range(10)) if best_s(p) < math.inf)
    least_s = best_s(problem)
    assert best_s({**problem, "below_s": least_s * 1.01}) == least_s
    assert best_s({**problem, "below_s": least_s}) == math.inf


def test_in_flight_limits_the_number_of_stages() -> None:
    """Two stages are best until the first can't hold a second micro-batch."""
    times = np.full((2, 2, 2, 1), np.inf)
    times[0, 1, 1], times[0, 0, 0], times[1, 1, 0] = 3.0, 2.0, 2.0
    later = np.full(times.shape, 1)
    arguments: Problem = {"submesh_devices": [1, 2], "n_devices": 2, "n_microbatches": 4}

    split = partition(times, later, **arguments)
    assert split is not None
    assert (len(split.stages), split.objective_s) == (2, 2 + 2 + 3 * 2)

    later[0, 0] = 0
    whole = partition(times, later, **arguments)
    assert whole is not None
    assert (len(whole.stages), whole.objective_s) == (1, 3 + 3 * 3)


def test_a_slower_suffix_of_fewer_stages_is_remembered() -> None:
    """The last two blocks are fastest as two stages, but the first block can't wait for so many."""
    times = np.full((3, 3, 2, 1), np.inf)
    times[0, 0, 0], times[1, 1, 0], times[2, 2, 0], times[1, 2, 1] = 1.0, 1.0, 1.0, 2.5
    later = np.full(times.shape, 1)

    found = partition(times, later, submesh_devices=[1, 2], n_devices=3, n_microbatches=4)

    assert found is not None
    assert [(stage.first, stage.last) for stage in found.stages] == [(0, 0), (1, 2)]
    assert found.objective_s == 1 + 2.5 + 3 * 2.5


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("times_s", np.zeros((2, 3, 1, 1)), "bad shape of times_s"),
        ("times_s", np.full((2, 2, 1, 1), np.nan), "bad figure in times_s"),
        ("times_s", np.full((2, 2, 1, 1), -1.0), "bad figure in times_s"),
        ("max_in_flight", np.zeros((2, 2, 1, 1)), "bad max_in_flight"),
        ("extra_s", np.full((2, 2, 1, 1), np.inf), "bad figure in times_s or extra_s"),
        ("extra_s", np.zeros((2, 2, 1, 2)), "bad shape of extra_s"),
        ("submesh_devices", [1, 2], "bad submesh_devices"),
        ("submesh_devices", [0], "bad submesh_devices"),
        ("n_devices", 0, "bad number of devices"),
        ("n_microbatches", 0, "bad number of devices or micro-batches"),
        ("stage_counts", set(), "bad stage_counts"),
        ("devices_before", [0, 1], "bad devices_before"),
        ("devices_before", [[-1, 1]], "bad devices_before"),
        ("stage_counts", {0, 1}, "bad stage_counts"),
    ],
)
def test_bad_input_is_named(key: str, value: object, words: str) -> None:
    problem: Problem = {
        "times_s": np.ones((2, 2, 1, 1)),
        "max_in_flight": np.ones((2, 2, 1, 1), np.int64),
        "submesh_devices": [1],
        "n_devices": 2,
        "n_microbatches": 4,
    }
    assert partition(**problem) is not None
    with pytest.raises(InvalidInputError, match=words):
        partition(**{**problem, key: value})
