"""Strategies of an operator on a mesh: what each axis splits, and the layouts of every operand that follow.

An axis splits one dim of the contraction, or none. Where it leaves weights whole it may still split their storage (ZeRO-3,
FSDP): they are gathered for use, and their gradients scattered.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight, query_tokens
from meshwright.solver.strategies.contraction import DimContext, Exchange, SplitRule, split_rules
from meshwright.solver.strategies.device_mesh import TensorLayout

WHOLE = "replicate"


@dataclass(frozen=True, slots=True)
class Assignment:
    """The rule that each mesh axis follows, by index into the operator's rules; None for an axis that splits nothing."""

    rules: tuple[int | None, ...]


@dataclass(frozen=True)
class PlacedOperator:
    """An operator on a mesh: its rules, and everything an assignment means for its operands.

    sizes are those of the whole operator, ``mesh`` has the sizes of the axes.
    """

    operator: Operator
    context: DimContext
    sizes: Mapping[str, int]
    mesh: tuple[int, ...]
    rules: tuple[SplitRule, ...]

    @classmethod
    def of(cls, operator: Operator, context: DimContext, sizes: Mapping[str, int], mesh: Sequence[int]) -> PlacedOperator:
        """The operator with its rules."""
        return cls(operator, context, sizes, tuple(mesh), split_rules(operator, context))

    def assignments(self) -> Iterator[Assignment]:
        """Every assignment under which each dim is split into equal parts, no split first; a ring is never mixed with
        gathered keys, since one dim takes one rule."""
        uses: tuple[int | None, ...] = (None, *range(len(self.rules)))
        for picked in itertools.product(*(uses if size > 1 else (None,) for size in self.mesh)):
            rules = {r for r in picked if r is not None}
            if len({self.rules[r].dim for r in rules}) == len(rules) and all(self._divides(r, picked) for r in rules):
                yield Assignment(picked)

    def _divides(self, rule: int, picked: Sequence[int | None]) -> bool:
        parts = self.rules[rule].parts_per_rank * math.prod(n for n, r in zip(self.mesh, picked, strict=True) if r == rule)
        return self.sizes[self.rules[rule].dim] % parts == 0

    def axes_of(self, assignment: Assignment, rule: int) -> tuple[int, ...]:
        """Axes that follow a rule, major to minor."""
        return tuple(axis for axis, used in enumerate(assignment.rules) if used == rule)

    def used_rules(self, assignment: Assignment) -> list[int]:
        """Rules that some axis follows, ascending."""
        return sorted({rule for rule in assignment.rules if rule is not None})

    def name(self, assignment: Assignment) -> tuple[str, ...]:
        """Return the split that each axis makes, in words."""
        return tuple(WHOLE if rule is None else self.rules[rule].name for rule in assignment.rules)

    def input(self, index: int, assignment: Assignment) -> TensorLayout:
        """Layout in which an input is read."""
        return self._layout([(r, self.rules[r].inputs[index]) for r in self.used_rules(assignment)], index, assignment)

    def input_gradient(self, index: int, assignment: Assignment) -> TensorLayout:
        """Layout of the gradient of an input: a partial sum over axes that split the work and not the input."""
        read = self.input(index, assignment)
        split = read.axes_of()
        partial = tuple(a for a, rule in enumerate(assignment.rules) if rule is not None and a not in split)
        return TensorLayout(read.splits, partial)

    def output(self, index: int, assignment: Assignment) -> TensorLayout:
        """Layout in which an output is written: a partial sum over axes that split a dim which is summed away."""
        written = self._output_splits(index, assignment)
        partial = [
            axis
            for r in self.used_rules(assignment)
            if self.rules[r].outputs[index] is None and self.rules[r].sums
            for axis in self.axes_of(assignment, r)
        ]
        return TensorLayout(written.splits, tuple(sorted(partial)))

    def output_gradient(self, index: int, assignment: Assignment) -> TensorLayout:
        """Layout in which the gradient of an output is wanted: split as the output, whole where that is a partial sum.

        An output that follows a split dim but has too few parts is whole on every rank and used by each for its own part:
        summands of its gradient serve as well as the sum, for weight and input gradients are linear in it.
        """
        written = self._output_splits(index, assignment)
        split = written.axes_of()
        partial = [
            axis
            for r in self.used_rules(assignment)
            if self.rules[r].outputs[index] is not None
            for axis in self.axes_of(assignment, r)
            if axis not in split
        ]
        return TensorLayout(written.splits, tuple(sorted(partial)))

    def _output_splits(self, index: int, assignment: Assignment) -> TensorLayout:
        inputs = len(self.operator.inputs)
        places = [(r, self.rules[r].outputs[index]) for r in self.used_rules(assignment)]
        return self._layout(places, inputs + index, assignment)

    def _layout(self, places: list[tuple[int, int | None]], operand: int, assignment: Assignment) -> TensorLayout:
        tensor = (*self.operator.inputs, *self.operator.outputs)[operand]
        sizes = self.shape(tensor)
        splits: list[tuple[int, ...]] = [()] * len(sizes)
        for rule, position in places:
            if position is not None:
                splits[position] = self._prefix(self.axes_of(assignment, rule), sizes[position])
        return TensorLayout(tuple(splits))

    def _prefix(self, axes: tuple[int, ...], size: int) -> tuple[int, ...]:
        """The major axes that a dim which follows another one has parts for."""
        count = 0
        while count < len(axes) and size % math.prod(self.mesh[a] for a in axes[: count + 1]) == 0:
            count += 1
        return axes[:count]

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Sizes of a tensor's dims, the experts last for a routed one."""
        sizes = tuple(self.sizes[dim] for dim in tensor.dims)
        routed = self.context.routed.get(tensor.name)
        return sizes if routed is None else (*sizes, self.sizes[routed])

    def weight_axes(self, index: int, assignment: Assignment) -> tuple[int, ...]:
        """Axes that split a weight in use."""
        weight = self.operator.weights[index]
        axes: list[int] = []
        for rule in self.used_rules(assignment):
            position = self.rules[rule].weights[index]
            if position is not None:
                axes += self._prefix(self.axes_of(assignment, rule), self.sizes[weight.dims[position]])
        return tuple(sorted(axes))

    def gradient_axes(self, index: int, assignment: Assignment) -> tuple[int, ...]:
        """Axes over which the gradient of a weight is a partial sum."""
        split = self.weight_axes(index, assignment)
        axes = [
            axis
            for rule in self.used_rules(assignment)
            if self.rules[rule].weights[index] is not None or self.rules[rule].sums_weight_gradients
            for axis in self.axes_of(assignment, rule)
            if axis not in split
        ]
        return tuple(sorted(axes))

    def local_weight(self, weight: Weight, axes: Sequence[int]) -> float:
        """Elements of a weight split over some axes."""
        return weight.elements(self.sizes) / math.prod(self.mesh[a] for a in axes)

    def storage_axes(self, assignment: Assignment) -> tuple[int, ...]:
        """Axes that may split the storage of weights: those that leave the largest weight whole in use."""
        operator = self.operator
        if not operator.weights:
            return ()
        largest = max(range(len(operator.weights)), key=lambda i: (operator.weights[i].elements(self.sizes), -i))
        used = self.weight_axes(largest, assignment)
        return tuple(a for a, size in enumerate(self.mesh) if size > 1 and a not in used)

    def local_sizes(self, assignment: Assignment) -> dict[str, int]:
        """Sizes of dims on one rank. Rows of routed activations spread evenly over experts, so splitting these divides a
        dim of the rows, which is what kernels see."""
        local = dict(self.sizes)
        for rule in self.used_rules(assignment):
            made = self.rules[rule]
            parts = math.prod(self.mesh[a] for a in self.axes_of(assignment, rule))
            local[made.dim] = -(-local[made.dim] // parts)
            for tensor, position in self._followed(made):
                follower = tensor.dims[position]
                axes = self._prefix(self.axes_of(assignment, rule), self.sizes[follower])
                local[follower] = self.sizes[follower] // math.prod(self.mesh[a] for a in axes)
            if self._routes(made):
                _divide_rows(local, self.operator.inputs[0], parts)
        return local

    def _followed(self, rule: SplitRule) -> list[tuple[Tensor | Weight, int]]:
        """Operands that are split along a dim which follows the rule's, and its position."""
        operator = self.operator
        operands: list[tuple[Tensor | Weight, int | None]] = [
            *zip(operator.inputs, rule.inputs, strict=True),
            *zip(operator.outputs, rule.outputs, strict=True),
            *zip(operator.weights, rule.weights, strict=True),
        ]
        return [(t, p) for t, p in operands if p is not None and p < len(t.dims) and t.dims[p] != rule.dim]

    def _routes(self, rule: SplitRule) -> bool:
        first = self.operator.inputs[0]
        return rule.inputs[0] == len(first.dims)

    def exchanges(self, assignment: Assignment) -> list[tuple[Exchange, SplitRule, tuple[int, ...]]]:
        """Return the exchanges of ranks inside the operator, each with its rule and axes."""
        return [
            (self.rules[rule].exchange, self.rules[rule], self.axes_of(assignment, rule))
            for rule in self.used_rules(assignment)
            if self.rules[rule].exchange is not Exchange.NONE
        ]

    def ring(self, assignment: Assignment) -> int:
        """Ranks of the ring that keys and values go around; 1 where there is none."""
        axes = [axes for exchange, _, axes in self.exchanges(assignment) if exchange is Exchange.RING]
        return math.prod(self.mesh[a] for group in axes for a in group)

    def gathers_keys(self, assignment: Assignment) -> bool:
        """Return True if queries are split over the sequence and keys are not."""
        if self.operator.kind is not OperatorKind.ATTENTION:
            return False
        tokens = query_tokens(self.operator)
        return any(self.rules[r].dim == tokens and self.rules[r].inputs[1] is None for r in self.used_rules(assignment))


def _divide_rows(local: dict[str, int], rows: Tensor, parts: int) -> None:
    """Divide the rows of an activation: the sequence, and the batch where that is too short."""
    for dim in (SEQ, BATCH, *rows.dims[:-1]):
        if parts > 1 and dim in local and dim in rows.dims:
            share = math.gcd(local[dim], parts)
            local[dim], parts = local[dim] // share, parts // share
    if parts > 1:
        longest = max(rows.dims[:-1], key=lambda dim: local[dim])
        local[longest] = max(1, -(-local[longest] // parts))
