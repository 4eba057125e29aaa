"""The traffic of an operator itself under an assignment: inside it, and to keep its weights whole and equal.

Transfers between operators are resharding (`solver.strategies.resharding`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from meshwright.costmodels.model.operators import OperatorKind, Tensor
from meshwright.costmodels.network.collectives import Collective
from meshwright.costmodels.units import DType
from meshwright.solver.strategies.contraction import Exchange, SplitRule
from meshwright.solver.strategies.device_mesh import TensorShape
from meshwright.solver.strategies.resharding import Transfer, TransferTimes
from meshwright.solver.strategies.strategy import Assignment, PlacedOperator


class TransferPhase(StrEnum):
    """When a transfer happens: in each micro-batch's forward or backward pass, or once a step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"


class StateSplit(StrEnum):
    """The split of optimizer states over axes whose ranks hold equal weights: copied, or split as ZeRO-1 does."""

    COPIED = "copied"
    SPLIT = "split"


@dataclass(frozen=True, slots=True)
class OperatorTransfer:
    """A transfer of an operator.

    times   how often each rank sends it
    waits   how often it stands in line: a state that passes rank after rank is sent once by each, and waited for by all
    """

    phase: TransferPhase
    transfer: Transfer
    times: int = 1
    waits: int = 1

    def seconds(self, times: TransferTimes) -> float:
        """Seconds until it is done."""
        return self.times * self.waits * times.seconds(self.transfer)


# Sum and sum of squares of a row, forward; the two sums of its gradient, backward (LayerNorm; an RMS norm has one each).
_NORM_VALUES = {TransferPhase.FORWARD: 2, TransferPhase.BACKWARD: 2}
# Maximum, sum of exponentials, logit of the target (Megatron-LM's vocabulary-parallel cross entropy); nothing backward.
_LOSS_VALUES = {TransferPhase.FORWARD: 3, TransferPhase.BACKWARD: 0}


def inner_traffic(placed: PlacedOperator, assignment: Assignment, dtype: DType) -> list[OperatorTransfer]:
    """Return the traffic between the ranks of an operator while it runs."""
    traffic: list[OperatorTransfer] = []
    for exchange, rule, axes in placed.exchanges(assignment):
        match exchange:
            case Exchange.RING:
                traffic += _ring(placed, assignment, axes, dtype)
            case Exchange.HALO:
                traffic += _halo(placed, assignment, rule, axes, dtype)
            case Exchange.STATE:
                traffic += _state(placed, assignment, axes)
            case Exchange.STATISTICS:
                traffic += _statistics(placed, assignment, rule, axes)
            case Exchange.NONE:
                pass
    return traffic


def _ring(placed: PlacedOperator, assignment: Assignment, axes: tuple[int, ...], dtype: DType) -> Iterator[OperatorTransfer]:
    """Keys and values visit every rank; backward their gradients go with them. Over several axes a ring in rings: the
    inner one goes around for every step of the outer one (LoongTrain's double ring)."""
    chunk = sum(_local_bytes(placed, assignment, index, dtype) for index in (1, 2))
    rounds = 1
    for axis in axes:
        steps = rounds * (placed.mesh[axis] - 1)
        yield OperatorTransfer(TransferPhase.FORWARD, Transfer(Collective.SEND_RECV, (axis,), chunk), steps)
        yield OperatorTransfer(TransferPhase.BACKWARD, Transfer(Collective.SEND_RECV, (axis,), 2 * chunk), steps)
        rounds *= placed.mesh[axis]


def _halo(
    placed: PlacedOperator, assignment: Assignment, rule: SplitRule, axes: tuple[int, ...], dtype: DType
) -> Iterator[OperatorTransfer]:
    """The margin of a kernel, one element less than its width, from the neighbour; backward its gradient returns."""
    local = placed.local_sizes(assignment)
    width = _kernel_width(placed, rule)
    margin = sum(
        _local_bytes(placed, assignment, index, dtype) / local[rule.dim] * (width - 1)
        for index, position in enumerate(rule.inputs)
        if position is not None
    )
    for phase in (TransferPhase.FORWARD, TransferPhase.BACKWARD):
        yield OperatorTransfer(phase, Transfer(Collective.SEND_RECV, axes, margin))


def _kernel_width(placed: PlacedOperator, rule: SplitRule) -> int:
    """Size of the kernel's dim that slides along the rule's; both are in order, the last goes with the last."""
    sliding = [made.dim for made in placed.rules if made.exchange is Exchange.HALO]
    kernel = list(placed.operator.routed_dims)
    pairs = dict(zip(reversed(sliding), reversed(kernel), strict=False))
    return placed.sizes[pairs[rule.dim]] if rule.dim in pairs else 1


def _state(placed: PlacedOperator, assignment: Assignment, axes: tuple[int, ...]) -> Iterator[OperatorTransfer]:
    """The state after a rank's last token, in fp32, to the rank with the next ones; backward its gradient returns."""
    x, b = placed.operator.inputs[0], placed.operator.inputs[1]
    local = placed.local_sizes(assignment)
    sequence = next(rule.dim for exchange, rule, _ in placed.exchanges(assignment) if exchange is Exchange.STATE)
    state = x.elements(local) / local[sequence] * local[b.dims[-1]] * DType.FP32.size_bytes
    rounds = 1
    for axis in axes:
        hops = rounds * (placed.mesh[axis] - 1)
        for phase in (TransferPhase.FORWARD, TransferPhase.BACKWARD):
            # Hops over the inner axes are of other ranks than those over this one: each rank sends once.
            yield OperatorTransfer(phase, Transfer(Collective.SEND_RECV, (axis,), state), waits=hops)
        rounds *= placed.mesh[axis]


def _statistics(
    placed: PlacedOperator, assignment: Assignment, rule: SplitRule, axes: tuple[int, ...]
) -> Iterator[OperatorTransfer]:
    """Sums of each row in fp32, all-reduced over the axes that split the row."""
    local = placed.local_sizes(assignment)
    first = placed.operator.inputs[0]
    reduced = {made.dim for exchange, made, _ in placed.exchanges(assignment) if exchange is Exchange.STATISTICS}
    rows = first.elements(local) / math.prod(local[dim] for dim in first.dims if dim in reduced)
    values = _LOSS_VALUES if placed.operator.kind is OperatorKind.LOSS else _NORM_VALUES
    for axis in axes:
        for phase, count in values.items():
            if count:
                yield OperatorTransfer(phase, Transfer(Collective.ALL_REDUCE, (axis,), rows * count * DType.FP32.size_bytes))


def _local_bytes(placed: PlacedOperator, assignment: Assignment, index: int, dtype: DType) -> float:
    tensor: Tensor = placed.operator.inputs[index]
    shape = TensorShape(placed.shape(tensor), dtype.size_bytes, routed=tensor.name in placed.context.routed)
    return shape.local_bytes(placed.input(index, assignment), placed.mesh)


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """Weights of an operator that lie alike.

    elements      of one rank while the operator runs
    stored        axes that split their storage only, major to minor
    summed        axes over which their gradients are summands, of these not stored
    scattered     axes of ``stored`` over which gradients are summands
    """

    elements: float
    stored: tuple[int, ...]
    summed: tuple[int, ...]
    scattered: tuple[int, ...]


def weight_groups(placed: PlacedOperator, assignment: Assignment, storage: tuple[int, ...]) -> list[WeightGroup]:
    """The operator's own weights under an assignment, tied ones left to their owner."""
    groups: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    for index, weight in enumerate(placed.operator.weights):
        if weight.tied_to is None:
            used = placed.weight_axes(index, assignment)
            key = (used, placed.gradient_axes(index, assignment))
            groups[key] = groups.get(key, 0.0) + placed.local_weight(weight, used)
    made = []
    for (used, summed), elements in groups.items():
        stored = tuple(a for a in storage if a not in used)
        made.append(
            WeightGroup(
                elements,
                stored,
                tuple(a for a in summed if a not in stored),
                tuple(a for a in stored if a in summed),
            )
        )
    return made


def weight_traffic(
    groups: list[WeightGroup], mesh: tuple[int, ...], *, dtype: DType, gradient_dtype: DType, states: StateSplit
) -> list[OperatorTransfer]:
    """Gathers of weights before each pass and scatters of gradients after it (ZeRO-3), and the sum of gradients of whole
    weights once a step: an all-reduce, or with split states a scatter of gradients and a gather of new weights (ZeRO-1)."""
    traffic: list[OperatorTransfer] = []
    for group in groups:
        traffic += _gathered(group, mesh, group.elements * dtype.size_bytes)
        traffic += _scattered(group, mesh, group.elements * gradient_dtype.size_bytes)
        share = group.elements / math.prod(mesh[a] for a in group.stored)
        traffic += _summed(group.summed, mesh, share, dtype=dtype, gradient_dtype=gradient_dtype, states=states)
    return traffic


def _gathered(group: WeightGroup, mesh: tuple[int, ...], whole_bytes: float) -> Iterator[OperatorTransfer]:
    held = whole_bytes / math.prod(mesh[a] for a in group.stored)
    for axis in group.stored:
        held *= mesh[axis]
        for phase in (TransferPhase.FORWARD, TransferPhase.BACKWARD):
            yield OperatorTransfer(phase, Transfer(Collective.ALL_GATHER, (axis,), held))


def _scattered(group: WeightGroup, mesh: tuple[int, ...], whole_bytes: float) -> Iterator[OperatorTransfer]:
    held = whole_bytes
    for axis in reversed(group.stored):
        if axis in group.scattered:
            yield OperatorTransfer(TransferPhase.BACKWARD, Transfer(Collective.REDUCE_SCATTER, (axis,), held))
        held /= mesh[axis]


def _summed(
    axes: tuple[int, ...], mesh: tuple[int, ...], elements: float, *, dtype: DType, gradient_dtype: DType, states: StateSplit
) -> Iterator[OperatorTransfer]:
    """From minor to major axis scatter, at the last one add up, and gather back."""
    weight_bytes = dtype.size_bytes if states is StateSplit.SPLIT else gradient_dtype.size_bytes
    back: list[OperatorTransfer] = []
    for axis in reversed(axes):
        is_last = axis == axes[0]
        if is_last and states is StateSplit.COPIED:
            yield OperatorTransfer(
                TransferPhase.STEP, Transfer(Collective.ALL_REDUCE, (axis,), elements * gradient_dtype.size_bytes)
            )
        else:
            yield OperatorTransfer(
                TransferPhase.STEP, Transfer(Collective.REDUCE_SCATTER, (axis,), elements * gradient_dtype.size_bytes)
            )
            back.append(OperatorTransfer(TransferPhase.STEP, Transfer(Collective.ALL_GATHER, (axis,), elements * weight_bytes)))
        elements /= mesh[axis]
    yield from reversed(back)
