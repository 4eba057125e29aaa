"""Measure sharding over an n-D mesh: ``python -m benchmarks.block_sharding``.

Times the whole search, building included and imports excluded, of one training block and of whole models, and prints
Markdown rows with the ratio to the model's own block. Each row is solved anew several times in this process, after one
solve that loads compiled code; the median counts. Ratios are of CPU time, which other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from meshwright.app.models import catalog
from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.memory.training_state import framework_overhead_bytes
from meshwright.solver.sharding_problem.work import NoLimit
from meshwright.solver.strategies.device_mesh import DeviceMesh, device_mesh
from meshwright.solver.strategies.graph_costs import GraphCosts
from meshwright.solver.strategies.operator_graph import OperatorGraph, Ties, one_block, unfolded
from meshwright.solver.strategies.pricing import TrainingStep
from meshwright.solver.strategies.solve import GraphSharding, shard_graph

BATCH, SEQ_LEN = 64, 8192

_TIGHT = 0.7
"""A block whose memory binds, beside whole models whose memory binds."""


@dataclass(frozen=True)
class Measured:
    """One solve, its wall-clock and CPU seconds."""

    answer: GraphSharding
    operators: int
    classes: int
    wall_s: float
    cpu_s: float


def mesh_of(*sizes: int) -> DeviceMesh:
    """A mesh of DGX H100 nodes, axes from outer to inner."""
    devices = 1
    for size in sizes:
        devices *= size
    node = node_type("dgx-h100")
    cluster = Cluster((NodeGroup("nodes", node, max(1, devices // node.devices_per_node)),))
    return device_mesh(cluster, {f"axis{i}": size for i, size in enumerate(sizes)})


def solved(make_graph: Callable[[], OperatorGraph], mesh: DeviceMesh, memory_bytes: float | None, ties: Ties) -> Measured:
    """Build and solve once."""
    cpu, wall = time.process_time(), time.perf_counter()
    costs = GraphCosts(make_graph(), mesh, TrainingStep(), ties)
    answer = shard_graph(costs, memory_bytes=memory_bytes, stop=NoLimit())
    wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    return Measured(answer, len(costs.graph.nodes), len(costs.folding.members), wall_s, cpu_s)


def row(name: str, runs: list[Measured], block_cpu_s: float | None) -> float:
    """Print a row; returns the median CPU seconds."""
    last = runs[-1]
    wall_s, cpu_s = (statistics.median(values) for values in ([run.wall_s for run in runs], [run.cpu_s for run in runs]))
    step = "none" if last.answer.step_s is None else f"{last.answer.step_s:.4g}"
    ratio = "1" if block_cpu_s is None else f"{cpu_s / block_cpu_s:.2f}"
    load = os.getloadavg()[0]
    print(
        f"| {name} | {last.operators} | {last.classes} | {last.answer.status} | {step} | {wall_s:.3f} | {cpu_s:.3f} "
        f"| {ratio} | {load:.1f} |",
        flush=True,
    )
    return cpu_s


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=7, help="solves of each row")
    repeat = parser.parse_args().repeat
    print("| graph, mesh | operators | classes | status | step s | wall s | CPU s | ratio to its block | load |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for name, sizes in (("llama-3.1-8b", (8, 8)), ("llama-3.1-405b", (8, 8)), ("llama-3.1-405b", (64, 8))):
        model, mesh = catalog.model(name), mesh_of(*sizes)
        usable = mesh.device.memory_bytes - framework_overhead_bytes(communicators=len(sizes))
        across = " x ".join(map(str, sizes))

        def block() -> OperatorGraph:
            return one_block(model, "layer", batch=BATCH, seq_len=SEQ_LEN)  # noqa: B023 (called before the next turn)

        def whole() -> OperatorGraph:
            return unfolded(model, batch=BATCH, seq_len=SEQ_LEN)  # noqa: B023 (called before the next turn)

        fastest = solved(block, mesh, usable, Ties.EQUAL_BLOCKS).answer.peak_bytes
        layers = len(model.layers)
        block_s = row(
            f"{name}, one block, {across}", [solved(block, mesh, usable, Ties.EQUAL_BLOCKS) for _ in range(repeat)], None
        )
        if fastest is not None:
            tight = [solved(block, mesh, _TIGHT * fastest, Ties.EQUAL_BLOCKS) for _ in range(repeat)]
            row(f"{name}, one block, in {_TIGHT:.0%} of the memory that its fastest takes, {across}", tight, block_s)
        rows = (
            (f"{name}, whole ({layers} blocks), {across}", None, Ties.EQUAL_BLOCKS, repeat),
            (f"{name}, whole, within a device's memory, {across}", usable, Ties.EQUAL_BLOCKS, repeat),
            (f"{name}, whole, ties relaxed, {across}", None, Ties.NONE, 1),
        )
        for label, memory_bytes, ties, count in rows:
            row(label, [solved(whole, mesh, memory_bytes, ties) for _ in range(count)], block_s)


if __name__ == "__main__":
    main()
