"""Measures the network between nodes with PyTorch: a script of its own, that `meshwright calibrate fabric` writes out.

It needs PyTorch and nothing else. Start it by torchrun on every node, as a training job is started:

    torchrun --nnodes N --nproc-per-node D --node-rank R --master-addr HOST --master-port 29500 fabric.py -o fabric.json

Every collective is timed in groups of two nodes, four and so on to all, with one rank of a group on each node, some, and all
of a node's. Groups of a kind run on all nodes at the same time, as those of a training job do; those of one rank a node also
alone. The first rank writes the file. NCCL joins GPUs, Gloo CPUs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

SCHEMA = "meshwright.fabric-measurements/1"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
STEP = 4
"""Ratio of a message size to the one before."""
WARM_UP, FEWEST, MOST = 2, 3, 200
"""Calls before the clock, and the least and the most of them on it."""


@dataclass(frozen=True)
class Shape:
    """Groups of ``nodes`` neighbouring nodes with ``ranks_per_node`` neighbouring ranks of each; ``groups_per_node`` of them
    share a node at once."""

    nodes: int
    ranks_per_node: int
    groups_per_node: int


def shapes_of(nodes: int, devices_per_node: int) -> Iterator[Shape]:
    """The shapes of groups that are measured: sizes double, one rank a node, about the root of a node's, and all of them."""
    sizes = sorted({2**power for power in range(1, int(math.log2(nodes)) + 1)} | {nodes})
    middle = 2 ** round(math.log2(devices_per_node) / 2)
    for size in sizes:
        for here in sorted({1, middle, devices_per_node}):
            if devices_per_node % here == 0:
                yield Shape(size, here, devices_per_node // here)
        if devices_per_node > 1:
            yield Shape(size, 1, 1)


def members_of(shape: Shape, nodes: int, devices_per_node: int) -> list[list[int]]:
    """Ranks of every group of a shape; nodes that are left over are in none."""
    found = []
    for first in range(0, nodes - shape.nodes + 1, shape.nodes):
        for part in range(shape.groups_per_node):
            here = range(part * shape.ranks_per_node, (part + 1) * shape.ranks_per_node)
            found.append([node * devices_per_node + rank for node in range(first, first + shape.nodes) for rank in here])
    return found


class Fabric:
    """One rank of the measurement."""

    def __init__(self, devices_per_node: int | None, backend: str | None):
        import torch
        import torch.distributed

        self.torch: Any = torch
        on_gpu = torch.cuda.is_available() if backend is None else backend == "nccl"
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.devices_per_node = devices_per_node or int(os.environ["LOCAL_WORLD_SIZE"])
        if self.ranks % self.devices_per_node or self.ranks < 2 * self.devices_per_node:
            raise SystemExit(
                f"{self.ranks} ranks are not two or more nodes of {self.devices_per_node}: start it on at least two nodes, "
                "or say with --devices-per-node how many devices your cluster document calls a node"
            )
        self.nodes = self.ranks // self.devices_per_node
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.cuda.set_device(self.device)
        self.backend = "nccl" if on_gpu else "gloo"
        torch.distributed.init_process_group(self.backend, timeout=datetime.timedelta(minutes=10))

    def synchronise(self) -> None:
        """Wait for the device's work."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def wait_for_all(self) -> None:
        """Let every rank come to this point."""
        self.torch.distributed.barrier()
        self.synchronise()

    def longest(self, value: float) -> float:
        """The largest of all ranks' values."""
        held = self.torch.tensor([value], dtype=self.torch.float64, device=self.device)
        self.torch.distributed.all_reduce(held, op=self.torch.distributed.ReduceOp.MAX)
        return float(held.item())

    def timed_s(self, run: Callable[[], Any] | None, repeat_s: float) -> float:
        """Seconds of one call on the rank that takes longest, calls following each other; a rank without one waits."""
        call = run or (lambda: None)
        for _ in range(WARM_UP):
            call()
        once_s = self._loop_s(call, 1)
        repeats = int(min(MOST, max(FEWEST, repeat_s / max(once_s, 1e-7))))
        return self._loop_s(call, repeats) / repeats

    def _loop_s(self, call: Callable[[], Any], repeats: int) -> float:
        self.wait_for_all()
        began_s = time.perf_counter()
        for _ in range(repeats):
            call()
        self.synchronise()
        return self.longest(time.perf_counter() - began_s)

    def prepared(self, kind: str, members: list[int], group: Any, message_bytes: int) -> Callable[[], Any]:
        """A call of one collective of this rank's group; messages are of 4-byte numbers, sizes those of the whole tensor."""
        torch, distributed = self.torch, self.torch.distributed
        each = max(1, message_bytes // 4 // len(members))
        whole = torch.zeros(each * len(members), device=self.device)
        part = torch.zeros(each, device=self.device)
        if kind == "all_reduce":
            return lambda: distributed.all_reduce(whole, group=group)
        if kind == "all_gather":
            return lambda: distributed.all_gather_into_tensor(whole, part, group=group)
        if kind == "reduce_scatter":
            return lambda: distributed.reduce_scatter_tensor(part, whole, group=group)
        if kind == "all_to_all":
            other = torch.zeros_like(whole)
            return lambda: distributed.all_to_all_single(other, whole, group=group)
        first, second = members
        if self.rank == first:
            return lambda: distributed.send(whole, second)
        return lambda: distributed.recv(whole, first)


def measure(fabric: Fabric, smallest: int, largest: int, repeat_s: float) -> list[dict[str, Any]]:
    """Time every collective, shape and size; the rows of the file."""
    rows = []
    for shape in shapes_of(fabric.nodes, fabric.devices_per_node):
        groups = members_of(shape, fabric.nodes, fabric.devices_per_node)
        made = [fabric.torch.distributed.new_group(members) for members in groups]
        mine = next((index for index, members in enumerate(groups) if fabric.rank in members), None)
        for kind in COLLECTIVES:
            if kind == "send_recv" and (shape.nodes, shape.ranks_per_node) != (2, 1):
                continue
            size = smallest
            while size <= largest:
                run = None if mine is None else fabric.prepared(kind, groups[mine], made[mine], size)
                seconds = fabric.timed_s(run, repeat_s)
                ranks = shape.nodes * shape.ranks_per_node
                rows.append(
                    {
                        "collective": kind,
                        "ranks": ranks,
                        "ranks_per_node": shape.ranks_per_node,
                        "groups_per_node": shape.groups_per_node,
                        "message_bytes": max(1, size // 4 // ranks) * 4 * ranks,
                        "time_s": seconds,
                    }
                )
                size *= STEP
            if fabric.rank == 0:
                print(f"{kind}: {shape.nodes} nodes, {shape.ranks_per_node} ranks of each", flush=True)
    return rows


def main() -> None:
    """Measure, and write the file on the first rank."""
    parser = argparse.ArgumentParser(description="Measure the network between nodes; start it by torchrun on every node.")
    parser.add_argument("-o", "--output", default="fabric.json", help="file that the first rank writes")
    parser.add_argument("--smallest", type=int, default=2**10, help="bytes of the smallest message")
    parser.add_argument("--largest", type=int, default=2**30, help="bytes of the largest message")
    parser.add_argument("--repeat-ms", type=float, default=50.0, help="time that one message size is repeated for")
    parser.add_argument("--devices-per-node", type=int, help="devices of a node, if not those that torchrun starts on a host")
    parser.add_argument("--backend", choices=("nccl", "gloo"), help="else NCCL where there are GPUs")
    given = parser.parse_args()
    fabric = Fabric(given.devices_per_node, given.backend)
    rows = measure(fabric, given.smallest, given.largest, given.repeat_ms * 1e-3)
    if fabric.rank == 0:
        on_gpu = fabric.device.type == "cuda"
        document = {
            "schema": SCHEMA,
            "nodes": fabric.nodes,
            "devices_per_node": fabric.devices_per_node,
            "device": fabric.torch.cuda.get_device_name(0) if on_gpu else "cpu",
            "backend": fabric.backend,
            "software": f"torch {fabric.torch.__version__}",
            "rows": rows,
        }
        with open(given.output, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
        print(f"{len(rows)} measurements written to {given.output}")
        print(f"Next: meshwright calibrate fabric --import {given.output} --cluster NAME")
    fabric.torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
