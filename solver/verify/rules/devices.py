"""Node groups that ranks lie in, and memory of their devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.answer.stage import DeviceRange, Stage
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.verify.numbers import agrees, at_most
from meshwright.solver.verify.violation import Rule, Violation


def devices_by_group(cluster: Cluster, ranges: Iterable[DeviceRange]) -> list[tuple[NodeGroup, int]]:
    """Node groups that hold at least one rank of the ranges, and how many they hold."""
    ranges = tuple(ranges)
    found, first = [], 0
    for group in cluster.groups:
        end = first + group.n_devices
        count = sum(max(0, min(end, r.first + r.count) - max(first, r.first)) for r in ranges)
        if count:
            found.append((group, count))
        first = end
    return found


def capacity_violations(request: PlanRequest, stage: Stage, where: str) -> Iterator[Violation]:
    """Yield a violation where a stage's usable memory is not what its smallest device has beside the reserve, or where the
    stage exceeds it."""
    memory = stage.memory
    groups = devices_by_group(request.cluster, stage.devices)
    smallest = min(group.node.device.memory_bytes for group, _ in groups)
    usable = smallest * (1.0 - request.cluster.memory_reserve)
    if not agrees(memory.capacity_bytes, usable):
        given = f"{memory.capacity_bytes}, usable are {usable}"
        yield Violation(Rule.USABLE, f"{where}.memory.capacity_bytes", given)
    if not at_most(memory.total_bytes, usable):
        given = f"{memory.total_bytes} bytes needed, {usable} usable"
        yield Violation(Rule.CAPACITY, f"{where}.memory", given, limit="device_memory")


def peak_violations(predicted: Predicted | None, stages: Iterable[Stage]) -> Iterator[Violation]:
    """The predicted peak is that of the fullest of all stages."""
    assert predicted is not None, "answer_violations asks for it"
    peak = max(stage.memory.total_bytes for stage in stages)
    if not agrees(predicted.peak_memory_bytes, peak):
        given = f"{predicted.peak_memory_bytes}, the fullest stage has {peak}"
        yield Violation(Rule.PEAK_MEMORY, "plan.predicted.peak_memory_bytes", given)
