"""Compares `solver.stages.partition` with a plain implementation of Alpa's stage DP on the same generated tables.

    python -m benchmarks.stages                  every size; the reference gets 120 CPU seconds a table
    python -m benchmarks.stages --limit-s 0      without the reference

Prints CPU seconds of one core after both have been compiled (numba keeps compiled code on disk between runs).
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from meshwright.solver.stages import partition, partition_layers

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Table:
    """A generated instance: what `partition` takes, and how it is called in the report."""

    name: str
    times_s: Floats
    max_in_flight: Ints
    extra_s: Floats
    submesh_devices: Ints
    n_devices: int
    n_microbatches: int


def alpa_submeshes(nodes: int, per_node: int) -> list[tuple[int, int]]:
    """Powers of two within a node, then whole nodes (Alpa, OSDI'22, section 5.2)."""
    within = [(1, 2**i) for i in range(per_node.bit_length())]
    return within + [(n, per_node) for n in range(2, nodes + 1)]


def generated_table(
    n_blocks: int, nodes: int, per_node: int, n_configs: int, *, n_microbatches: int = 64, memory: float, seed: int = 0
) -> Table:
    """A table shaped like a transformer's: near-equal blocks, a heavy last one, sharding that loses efficiency.

    A configuration trades time (up to 1.35 times) for activation memory (down to a fifth), as recomputation does;
    ``memory`` is what a device has, in units of the activations of a block on one device. Noise of 10% stands for profiling.
    """
    rng = np.random.default_rng(seed)
    submeshes = alpa_submeshes(nodes, per_node)
    devices = np.array([n * k for n, k in submeshes])
    block = rng.uniform(0.9, 1.1, n_blocks)
    block[0], block[-1] = 0.5 * block[0], 1.5 * block[-1]
    before = np.concatenate([[0.0], np.cumsum(block)])
    below = np.tri(n_blocks, k=-1, dtype=np.bool_)
    work = np.where(below, 1.0, before[None, 1:] - before[:-1, None])[:, :, None, None]
    overhead = 1 + 0.05 * np.log2(devices) + 0.1 * np.array([n > 1 for n, _ in submeshes])
    per_device = work / devices[None, None, :, None]
    times = per_device * overhead[None, None, :, None] * np.linspace(1, 1.35, n_configs)
    times = times * rng.uniform(1, 1.1, times.shape)
    spare = (memory - per_device) / (per_device * np.linspace(1, 0.2, n_configs))
    later = np.clip(np.floor(spare) - 1, -1, n_blocks).astype(np.int64)
    times[below], later[below] = np.inf, -1
    extra = np.broadcast_to(0.5 * per_device, times.shape).copy()
    name = f"{n_blocks} layers, {nodes}x{per_node}, {n_microbatches} micro-batches, {n_configs} configs, memory {memory:g}"
    return Table(name, times, later, extra, devices, nodes * per_node, n_microbatches)


def reference_partition(table: Table, limit_s: float, gap_s: float = 1e-6) -> float | None:
    """Alpa's DP, plainly: for every stage time as the longest, in rising order and ``gap_s`` apart, one table over
    (stages, first block, devices). Returns the objective, or None when ``limit_s`` CPU seconds were not enough.
    """
    begin = time.process_time()
    best_s, last_s = math.inf, -math.inf
    for longest_s in np.unique(table.times_s[np.isfinite(table.times_s)]):
        if table.n_microbatches * longest_s >= best_s:
            break
        if longest_s - last_s < gap_s:
            continue
        last_s = longest_s
        sum_s = _least_sum(table.times_s, table.max_in_flight, table.submesh_devices, table.n_devices, longest_s)
        best_s = min(best_s, sum_s + (table.n_microbatches - 1) * longest_s)
        if time.process_time() - begin > limit_s:
            return None
    return best_s


@njit(cache=True)
def _least_sum(times: Floats, max_in_flight: Ints, submesh_devices: Ints, n_devices: int, longest: float) -> float:
    n_blocks, _, n_submeshes, n_configs = times.shape
    sums = np.full((n_blocks + 1, n_blocks + 1, n_devices + 1), np.inf)
    sums[0, n_blocks, 0] = 0.0
    for stages in range(1, n_blocks + 1):
        for first in range(n_blocks - 1, -1, -1):
            for devices in range(1, n_devices + 1):
                for last in range(first, n_blocks):
                    for s in range(n_submeshes):
                        rest = devices - submesh_devices[s]
                        if rest < 0 or sums[stages - 1, last + 1, rest] == np.inf:
                            continue
                        for c in range(n_configs):
                            t = times[first, last, s, c]
                            if t <= longest and max_in_flight[first, last, s, c] >= stages - 1:
                                value = t + sums[stages - 1, last + 1, rest]
                                if value < sums[stages, first, devices]:
                                    sums[stages, first, devices] = value
    return float(sums[:, 0, n_devices].min())


def measured_partition(table: Table, *, with_extra: bool = False) -> tuple[float, float]:
    """(CPU seconds, objective) of the fastest of three runs of `partition`; an infinite objective where nothing fits."""
    fastest_s, objective_s = math.inf, math.inf
    for _ in range(3):
        begin = time.process_time()
        found = partition(
            table.times_s,
            table.max_in_flight,
            submesh_devices=table.submesh_devices,
            n_devices=table.n_devices,
            n_microbatches=table.n_microbatches,
            extra_s=table.extra_s if with_extra else None,
        )
        fastest_s = min(fastest_s, time.process_time() - begin)
        objective_s = math.inf if found is None else found.objective_s
    return fastest_s, objective_s


def compare(limit_s: float) -> Iterator[str]:
    """One line a table: our CPU seconds, with extras too, the reference's, and whether the objectives agree."""
    yield f"{'table':78} {'ours s':>8} {'extras s':>8} {'Alpa DP s':>10} {'ratio':>9}  objective (ours, Alpa's)"
    tiny = generated_table(4, 1, 2, 1, memory=100.0)
    reference_partition(tiny, 60.0)
    measured_partition(tiny)
    for n_blocks, nodes, per_node in ((16, 4, 8), (32, 8, 8), (64, 8, 8), (96, 64, 8)):
        for memory in (1e9, 6 * n_blocks / (nodes * per_node), 1.7 * n_blocks / (nodes * per_node)):
            table = generated_table(n_blocks, nodes, per_node, 4, memory=memory)
            ours_s, objective_s = measured_partition(table)
            extra_s, _ = measured_partition(table, with_extra=True)
            begin = time.process_time()
            reference_s = reference_partition(table, limit_s) if limit_s > 0 else None
            spent_s = time.process_time() - begin
            ratio = f"{'>' if reference_s is None else ''}{spent_s / ours_s:.0f}x"
            theirs = f"{'not run':>10} {'':>9}" if limit_s <= 0 else f"{spent_s:10.2f} {ratio:>9}"
            answer = ("not finished" if limit_s > 0 else "not run") if reference_s is None else f"{reference_s:.6f}"
            yield f"{table.name:78} {ours_s:8.4f} {extra_s:8.4f} {theirs}  {objective_s:.6f}, {answer}"


def every_microbatch_and_stage_count() -> str:
    """CPU seconds for each (micro-batch count, stage count) of a 32-layer, 16-device instance, with extras (Mist's search)."""
    counts = [2**i for i in range(9)]
    tables = [generated_table(32, 2, 8, 4, n_microbatches=m, memory=6.0, seed=m) for m in counts]
    begin = time.process_time()
    for table in tables:
        for n_stages in range(1, table.n_devices + 1):
            partition(
                table.times_s,
                table.max_in_flight,
                submesh_devices=table.submesh_devices,
                n_devices=table.n_devices,
                n_microbatches=table.n_microbatches,
                extra_s=table.extra_s,
                stage_counts={n_stages},
            )
    spent_s = time.process_time() - begin
    return f"32 layers, 16 devices, {16 * len(counts)} pairs of micro-batch and stage counts: {spent_s:.3f} s in total"


def layer_chains() -> Iterator[str]:
    """CPU milliseconds of `partition_layers`, by memory a stage."""
    rng = np.random.default_rng(0)
    n_blocks, n_stages, repeats = 128, 16, 20
    block = rng.uniform(1, 1.3, n_blocks)
    in_flight = np.arange(n_stages, 0, -1)
    for memory in (1.2, 0.6, 0.3):
        begin = time.process_time()
        for _ in range(repeats):
            partition_layers(
                time_s=np.array([[1.0], [1.1], [1.33]]) * block,
                static_bytes=2 * block,
                activation_bytes=np.array([[1.0], [0.4], [0.1]]) * block,
                transient_bytes=np.full((3, n_blocks), 0.2),
                extra_s=0.1 * block,
                boundary_s=0.01,
                capacity_bytes=np.full(n_stages, memory * n_blocks),
                in_flight=in_flight,
                n_microbatches=64,
            )
        spent_ms = 1e3 * (time.process_time() - begin) / repeats
        yield f"{n_blocks} blocks, {n_stages} stages, 3 configs, memory {memory}: {spent_ms:.2f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the stage partitioner with a plain implementation of Alpa's DP.")
    parser.add_argument("--limit-s", type=float, default=120.0, help="CPU seconds the reference gets a table; 0: not run")
    arguments = parser.parse_args()
    for line in compare(arguments.limit_s):
        print(line, flush=True)
    print(every_microbatch_and_stage_count())
    for line in layer_chains():
        print(line)


if __name__ == "__main__":
    main()
