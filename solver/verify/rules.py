"""Parameters that one rank stores, by how the model is divided."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from meshwright.costmodels.cluster.cluster import Cluster, NodeGroup
from meshwright.costmodels.model.dims import HEADS, KV_HEADS, SSM_GROUPS, SSM_HEADS
from meshwright.costmodels.model.operators import Operator, OperatorKind
from meshwright.solver.answer.predicted import Predicted
from meshwright.solver.answer.stage import DeviceRange, Stage
from meshwright.solver.problem.graph import Block
from meshwright.solver.problem.request import PlanRequest
from meshwright.solver.verify.launchers import Layers
from meshwright.solver.verify.violation import Rule, Violation, agrees, at_most

REPLICATE = "replicate"
LEADERS = {KV_HEADS: HEADS, SSM_GROUPS: SSM_HEADS}


def picked_dims(operator: Operator) -> set[str]:
    """Dims that only the weights of a product have: each row meets one index of them, an expert, which routing picks."""
    if operator.kind is not OperatorKind.MATMUL:
        return set()
    in_weights = {dim for weight in operator.weights for dim in weight.dims}
    return in_weights - {dim for tensor in (*operator.inputs, *operator.outputs) for dim in tensor.dims}


def between_experts(block: Block) -> set[str]:
    """Return the operators that lie between products of routed experts."""
    writer = {tensor.name: operator for operator in block.operators for tensor in operator.outputs}
    found: set[str] = set()
    for operator in block.operators:
        before = [writer.get(tensor.name) for tensor in operator.inputs]
        after = [reader for reader in block.operators if {t.name for t in reader.inputs} & {t.name for t in operator.outputs}]
        between = all(op is not None and picked_dims(op) for op in before) and any(picked_dims(op) for op in after)
        if operator.kind is OperatorKind.ELEMENTWISE and between:
            found.add(operator.name)
    return found


@dataclass(frozen=True, slots=True)
class ModelSplit:
    """The division of the model by the tp axis, by the strategy of every operator, by the ep axis of its experts, and by the cp
    axis (whose share of the sequence is in ``sizes``) of attention. Weights of operators ``stored_split`` that tp ranks use
    whole lie split over them. ``crowding`` is the rows of the ep rank with the most over the mean, ``layers`` the parts of the
    launcher's layers."""

    tp: int
    strategies: dict[tuple[str, str], str]
    sizes: dict[str, int]
    ep: int = 1
    cp: int = 1
    crowding: float = 1.0
    layers: Layers = Layers.HAND_WRITTEN
    stored_split: frozenset[tuple[str, str]] = frozenset()

    def whole_elements(self, block: str, operator: Operator) -> int:
        """Elements of an operator's weights that every tp rank uses whole, and stores a share of; 0 where it stores all."""
        if (block, operator.name) not in self.stored_split:
            return 0
        dim, sizes = self.strategies[block, operator.name], self.local(block, operator)
        split = {dim, *(follower for follower, leader in LEADERS.items() if leader == dim)}
        return sum(weight.elements(sizes) for weight in operator.weights if split.isdisjoint(weight.dims))

    def local(self, block: str, operator: Operator) -> dict[str, int]:
        """Sizes of dims on one rank; a vocabulary that is padded is rounded up, key/value heads fewer than tp are copied."""
        dim = self.strategies[block, operator.name]
        sizes = dict(self.sizes)
        if dim != REPLICATE:
            sizes[dim] = math.ceil(sizes[dim] / self.tp)
            for follower in (name for name, leader in LEADERS.items() if leader == dim and name in sizes):
                sizes[follower] //= min(self.tp, sizes[follower])
        for experts in picked_dims(operator):
            sizes[experts] //= self.ep
        return sizes


@dataclass(frozen=True, slots=True)
class Owned:
    """Parameters that one rank stores: those that all dp x cp ranks hold alike, and those of spread experts."""

    shared: int
    experts: int

    @property
    def total(self) -> int:
        """Both together."""
        return self.shared + self.experts


def owned_parameters(block: Block, share: ModelSplit) -> Owned:
    """Parameters that one rank stores of one copy of a block, weights tied to another block's left out."""
    shared, experts = 0, 0
    for operator in block.operators:
        stored = sum(
            weight.elements(share.local(block.name, operator)) for weight in operator.weights if weight.tied_to is None
        )
        whole = share.whole_elements(block.name, operator)
        stored -= whole - whole // share.tp
        if picked_dims(operator):
            experts += stored
        else:
            shared += stored
    return Owned(shared, experts)


def tied_copies(request: PlanRequest, stage: Stage, share: ModelSplit) -> tuple[int, int]:
    """Least and most parameters that a stage stores for weights owned elsewhere: one copy of each owner that no layer
    of the stage holds, or one copy for each layer that uses it."""
    here = {span.block: span.count for span in stage.blocks}
    least: dict[str, int] = {}
    most = 0
    for block, operator, weight in request.model.tied_weights():
        if block not in here or weight.tied_to is None:
            continue
        size = weight.elements(share.local(block, request.model.block(block).operator(operator)))
        most += here[block] * size
        if request.model.owner(weight.tied_to).block not in here:
            least[weight.tied_to] = size
    return sum(least.values()), most


# Node groups that ranks lie in, and memory of their devices.


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


# Money and error bands of what a plan predicts.

_S_PER_HOUR = 3600.0


def cost_violations(
    predicted: Predicted | None, request: PlanRequest, used: Iterable[tuple[Sequence[Stage], int]]
) -> Iterator[Violation]:
    """Price of the devices in use over the tokens they make; none where a price is unknown. ``used`` are stages, and how many
    devices they and those like them have."""
    assert predicted is not None, "answer_violations asks for it"
    claimed = predicted.cost_per_million_tokens
    if claimed is None:
        return
    per_hour = 0.0
    for stages, devices in used:
        groups = devices_by_group(request.cluster, (listed for stage in stages for listed in stage.devices))
        prices = [group.node.device.price_per_hour for group, _ in groups]
        if any(price is None for price in prices):
            yield Violation(Rule.COST, "plan.predicted.cost_per_million_tokens", "a device in use has no known price")
            return
        # A serving plan may list the devices of one replica; the others are like it.
        copies = devices / sum(count for _, count in groups)
        per_hour += copies * sum(count * (price or 0.0) for (_, count), price in zip(groups, prices, strict=True))
    expected = per_hour / _S_PER_HOUR / predicted.tokens_per_s * 1e6
    if not agrees(claimed, expected):
        yield Violation(Rule.COST, "plan.predicted.cost_per_million_tokens", f"{claimed}, prices make {expected}")


def band_violations(predicted: Predicted | None) -> Iterator[Violation]:
    """A band has its low end below its high end."""
    assert predicted is not None, "answer_violations asks for it"
    for name, band in predicted.bands.items():
        if band.low > band.high:
            yield Violation(Rule.BANDS, f"plan.predicted.bands.{name}", f"low {band.low} is above high {band.high}")


# Layers of a plan's stages: all of the model, each once.


def layer_violations(stages: Sequence[Stage], request: PlanRequest) -> Iterator[Violation]:
    """Every layer of the model once, in order, under its own block's name; no stage without layers."""
    layers = request.model.layers
    expected = 0
    for index, stage in enumerate(stages):
        if not sum(span.count for span in stage.blocks):
            yield Violation(Rule.LAYERS, f"plan.stages[{index}]", "holds no layer")
        for span in stage.blocks:
            where = f"plan.stages[{index}], layers {span.first} to {span.first + span.count - 1}"
            if span.first != expected:
                yield Violation(Rule.LAYERS, where, f"layer {expected} should come next")
            if span.first + span.count > len(layers):
                yield Violation(Rule.LAYERS, where, f"the model has {len(layers)} layers")
            elif any(layers[i] != span.block for i in range(span.first, span.first + span.count)):
                yield Violation(Rule.LAYERS, where, f"not all of them are copies of block {span.block!r}")
            expected = span.first + span.count
    if expected != len(layers):
        yield Violation(Rule.LAYERS, "plan.stages", f"they end at layer {expected}, the model has {len(layers)}")
