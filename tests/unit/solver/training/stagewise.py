"""Shared by the tests of stagewise and others: stagewise_requests, mixed_requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from meshwright.costmodels.cluster.cluster import Cluster, Link, NodeGroup, part_of_node
from meshwright.solver.problem.choices import GroupOrder, Recompute, Space, StageDegrees, TpOverlap
from meshwright.solver.problem.request import TrainingRequest
from tests.unit.solver.training.instances import random_request


def stagewise_requests(count: int) -> Iterator[TrainingRequest]:
    """Requests of the free space for two or three stages on four devices of one kind, every micro-batch size allowed."""
    seed = 0
    while count:
        request = random_request(seed)
        seed += 1
        if request.search.space is Space.FREE and len(request.model.layers) in (3, 4):
            count -= 1
            node = part_of_node(request.cluster.groups[0].node, 2)
            # Sends as cheap as inside nodes, or small models are best on as few stages as can be: two devices share the
            # network, which reaches less of its line rate.
            node = replace(node, inter=replace(node.intra, bytes_per_s=3 * node.intra.bytes_per_s))
            search = replace(
                request.search,
                stage_degrees=StageDegrees.ANY,
                microbatch=(),
                pp=(2, 3),
                schedules=(),
                recompute=(Recompute.NONE,) if seed % 2 else (Recompute.FULL,),
                offload_optimizer=(),
                offload_activations=(),
                tp_overlap=(TpOverlap.EXPOSED,),
            )
            # Of one group a node would be left idle: these models are too small for two.
            cluster = replace(request.cluster, groups=(NodeGroup("nodes", node, 1), NodeGroup("others", node, 1)))
            yield replace(request, cluster=cluster, search=search)


def mixed_requests(count: int) -> Iterator[TrainingRequest]:
    """The same on two kinds of nodes, one or two of each and of two devices, of which the second is slower in all but its
    fabric and has other memory, in this order or the other; every second request lets them stand in any order."""
    for seed, request in enumerate(stagewise_requests(count)):
        rng = np.random.default_rng(seed)
        group = request.cluster.groups[0]
        node, device = group.node, group.node.device
        slower = replace(
            device,
            name="slower",
            memory_bytes=int(device.memory_bytes * rng.uniform(0.7, 1.6)),
            peak_flops={dtype: rate * rng.uniform(0.3, 0.9) for dtype, rate in device.peak_flops.items()},
            memory_bytes_per_s=device.memory_bytes_per_s * rng.uniform(0.3, 0.9),
        )
        narrow = Link("narrow", node.inter.bytes_per_s * rng.uniform(0.05, 0.6), 2 * node.inter.latency_s)
        other = replace(node, name="other", device=slower, inter=narrow)
        counts = [(1, 1), (1, 1), (2, 1), (1, 2)][int(rng.integers(4))]
        groups = [NodeGroup(name, kind, n) for name, kind, n in zip("ab", (node, other), counts, strict=True)]
        groups = groups if rng.random() < 0.5 else groups[::-1]
        order = (GroupOrder.GIVEN, GroupOrder.ANY)[seed % 2]
        yield replace(request, cluster=Cluster(tuple(groups)), search=replace(request.search, group_order=order))
