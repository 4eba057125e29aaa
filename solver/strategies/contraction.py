"""Operators as contractions: which dims may be split, and what a split means for every operand.

A matmul, an attention, a norm, a lookup, a loss, a convolution and a scan are all contractions over named dims. For each
dim that a mesh axis may split, a rule says which operands are split with it, whether outputs are left as partial sums, and
what the ranks must exchange inside the operator. Strategies, collectives and memory follow from these rules alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor, Weight, query_tokens

GATHERED_KEYS = "seq(gathered keys)"
"""Attention with queries split over the sequence and every key and value on each rank."""


class Exchange(StrEnum):
    """The data that ranks which share a split dim pass on while the operator runs."""

    NONE = "none"
    RING = "ring"
    """Keys and values go around (ring attention, Liu et al. 2023)."""
    HALO = "halo"
    """The margin of a window over the dim goes to the neighbour."""
    STATE = "state"
    """The state after a rank's tokens goes to the next rank."""
    STATISTICS = "statistics"
    """Sums of each row are added up."""


@dataclass(frozen=True, slots=True)
class SplitRule:
    """The effect of splitting one dim of an operator.

    name              the strategy's name for it, most often the dim
    dim               the dim whose size must divide by the axes
    inputs, outputs, weights   for each operand, the position of the dim in it that is split along, or None: it is whole.
                      Position len(dims) of a routed activation is the expert of each row
    sums              whether outputs without the dim are partial sums
    sums_weight_gradients   whether each rank has only a summand of the gradient of a weight without the dim
    exchange          what ranks exchange inside the operator
    parts_per_rank    equal parts of the dim that each rank needs (2 under a causal mask: zig-zag ring attention)
    """

    name: str
    dim: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    weights: tuple[int | None, ...]
    sums: bool
    sums_weight_gradients: bool
    exchange: Exchange = Exchange.NONE
    parts_per_rank: int = 1


@dataclass(frozen=True)
class DimContext:
    """The facts about dims that a block knows and one operator alone does not.

    followers   dims that go with another one: key/value heads with query heads, groups with the heads of a scan
    by_group    heads of a scan: a norm over them works by group
    whole       dims that are never split: a head's own
    routed      activations whose rows are routed, and the dim of the experts
    """

    followers: Mapping[str, str] = field(default_factory=dict)
    by_group: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    routed: Mapping[str, str] = field(default_factory=dict)


def dim_context(operators: Iterable[Operator]) -> DimContext:
    """Return the facts about dims that attention, scan and routed operators give."""
    operators = tuple(operators)
    followers: dict[str, str] = {}
    by_group: set[str] = set()
    whole: set[str] = set()
    for operator in operators:
        if operator.kind is OperatorKind.ATTENTION:
            query, key, value = operator.inputs
            whole |= {tensor.dims[-1] for tensor in (query, key, value)}
            followers |= _pairs(query, key, tokens=query_tokens(operator))
        elif operator.kind is OperatorKind.SCAN and len(operator.inputs[0].dims) == len(operator.inputs[1].dims) > 3:
            followers |= _pairs(operator.inputs[0], operator.inputs[1])
            by_group |= set(_pairs(operator.inputs[0], operator.inputs[1]).values())
    return DimContext(followers, frozenset(by_group), frozenset(whole), _routed(operators))


def _pairs(leading: Tensor, following: Tensor, *, tokens: str = SEQ) -> dict[str, str]:
    """Dims of one tensor and, at the same places of another, the dims that they follow; the last dims are a head's own."""
    pairs = zip(leading.dims[:-1], following.dims[:-1], strict=False)
    return {follower: leader for leader, follower in pairs if leader != follower and leader not in (BATCH, tokens)}


def _routed(operators: tuple[Operator, ...]) -> dict[str, str]:
    """Activations of grouped matrix operators, and of the elementwise operators between them."""
    routed: dict[str, str] = {}
    for operator in operators:
        if operator.kind is OperatorKind.MATMUL and operator.routed_dims:
            for tensor in (operator.inputs[0], *operator.outputs):
                routed[tensor.name] = operator.routed_dims[0]
    changed = True
    while changed:
        changed = False
        for operator in operators:
            activations = (*operator.inputs, *operator.outputs)
            if operator.kind is not OperatorKind.ELEMENTWISE or len({tensor.dims for tensor in activations}) > 1:
                continue
            dims = [routed[tensor.name] for tensor in activations if tensor.name in routed]
            for tensor in activations:
                if dims and tensor.name not in routed:
                    routed[tensor.name] = dims[0]
                    changed = True
    return routed


def split_rules(operator: Operator, context: DimContext) -> tuple[SplitRule, ...]:
    """Rules of every dim that may be split, in order of first appearance in the operator's operands."""
    maker = _Rules(operator, context)
    tensors: tuple[Tensor | Weight, ...] = (*operator.inputs, *operator.outputs, *operator.weights)
    dims = dict.fromkeys(dim for tensor in tensors for dim in tensor.dims)
    rules: list[SplitRule] = []
    for dim in dims:
        if dim not in context.whole and context.followers.get(dim) not in dims:
            rules += maker.rules(dim)
    routed = [context.routed[t.name] for t in (*operator.inputs, *operator.outputs) if t.name in context.routed]
    if routed and all(t.name in context.routed for t in (operator.inputs[0], *operator.outputs)) and routed[0] not in dims:
        rules.append(maker.along(routed[0]))
    return tuple(rules)


class _Rules:
    """Rules of one operator, by kind."""

    def __init__(self, operator: Operator, context: DimContext):
        self.operator = operator
        self.context = context
        self.follower = {leader: follower for follower, leader in context.followers.items()}

    def rules(self, dim: str) -> list[SplitRule]:
        """Rules for a dim; none where splitting it would change what the operator computes."""
        match self.operator.kind:
            case OperatorKind.MATMUL:
                return self._matmul(dim)
            case OperatorKind.ATTENTION:
                return self._attention(dim)
            case OperatorKind.PRODUCT:
                return self._product(dim)
            case OperatorKind.NORM | OperatorKind.LOSS:
                return self._by_row(dim)
            case OperatorKind.ELEMENTWISE:
                return [self.along(dim)] if self._in_every_output(dim) else []
            case OperatorKind.EMBEDDING:
                return self._embedding(dim)
            case OperatorKind.CONVOLUTION:
                return self._convolution(dim)
            case OperatorKind.SCAN:
                return self._scan(dim)

    def along(self, dim: str, *, exchange: Exchange = Exchange.NONE, name: str | None = None, parts: int = 1) -> SplitRule:
        """Every operand that has the dim, or its follower, is split; outputs without it are partial sums."""
        operator = self.operator
        outputs = tuple(self._position(dim, tensor) for tensor in operator.outputs)
        return SplitRule(
            name=name or dim,
            dim=dim,
            inputs=tuple(self._position(dim, tensor) for tensor in operator.inputs),
            outputs=outputs,
            weights=tuple(self._position(dim, weight) for weight in operator.weights),
            sums=exchange is not Exchange.STATISTICS,
            sums_weight_gradients=any(position is not None for position in outputs),
            exchange=exchange,
            parts_per_rank=parts,
        )

    def _position(self, dim: str, tensor: Tensor | Weight) -> int | None:
        for candidate in (dim, self.follower.get(dim)):
            if candidate in tensor.dims:
                return tensor.dims.index(candidate)
        if isinstance(tensor, Tensor) and self.context.routed.get(tensor.name) == dim:
            return len(tensor.dims)
        return None

    def _in_every_output(self, dim: str) -> bool:
        return all(self._position(dim, tensor) is not None for tensor in self.operator.outputs)

    def _matmul(self, dim: str) -> list[SplitRule]:
        """A dim of all outputs (rows, columns, experts), or one that is summed away. Of fused products with different
        columns one would be whole on every rank, and its input gradient counted once a rank."""
        if self._in_every_output(dim) or dim in self.operator.contracted_dims:
            return [self.along(dim)]
        return []

    def _product(self, dim: str) -> list[SplitRule]:
        """A dim of the output, or one that both inputs have and the output lacks, which leaves partial sums."""
        summed = all(dim in tensor.dims for tensor in self.operator.inputs)
        return [self.along(dim)] if self._in_every_output(dim) or summed else []

    def _attention(self, dim: str) -> list[SplitRule]:
        query, key, _ = self.operator.inputs
        if dim not in query.dims:
            return []
        if dim != query_tokens(self.operator):
            return [self.along(dim)]
        parts = 1 if self.operator.mask == "full" else 2
        ring = self.along(dim, exchange=Exchange.RING, parts=parts)
        gathered = replace(ring, name=GATHERED_KEYS, inputs=(ring.inputs[0], None, None), exchange=Exchange.NONE)
        return [ring, gathered] if dim in key.dims else [gathered]

    def _by_row(self, dim: str) -> list[SplitRule]:
        """A norm reduces over its weight's dims, or the last one; a loss over the classes. Splitting these leaves sums of
        each row to add up; a norm over the heads of a scan works by group."""
        operator = self.operator
        first = operator.inputs[0]
        if dim not in first.dims:
            return []
        if operator.kind is OperatorKind.LOSS:
            reduced = {d for d in first.dims if all(d not in tensor.dims for tensor in operator.outputs)}
        else:
            reduced = {d for weight in operator.weights for d in weight.dims} or {first.dims[-1]}
            reduced -= self.context.by_group
        return [self.along(dim, exchange=Exchange.STATISTICS if dim in reduced else Exchange.NONE)]

    def _embedding(self, dim: str) -> list[SplitRule]:
        """Rows, columns, or the entries of the first table: a rank without the entry adds zeros."""
        if self._in_every_output(dim):
            return [self.along(dim)]
        activations = {d for tensor in (*self.operator.inputs, *self.operator.outputs) for d in tensor.dims}
        entries = [d for d in self.operator.weights[0].dims if d not in activations]
        return [self.along(dim)] if dim in entries else []

    def _convolution(self, dim: str) -> list[SplitRule]:
        operator = self.operator
        in_weights = any(self._position(dim, weight) is not None for weight in operator.weights)
        in_inputs = any(self._position(dim, tensor) is not None for tensor in operator.inputs)
        if self._in_every_output(dim):
            slides = in_inputs and not in_weights and dim != BATCH
            return [self.along(dim, exchange=Exchange.HALO if slides else Exchange.NONE)]
        is_summed = in_inputs and in_weights and all(self._position(dim, t) is None for t in operator.outputs)
        return [self.along(dim)] if is_summed else []

    def _scan(self, dim: str) -> list[SplitRule]:
        if not self._in_every_output(dim) or dim not in self.operator.inputs[0].dims:
            return []
        return [self.along(dim, exchange=Exchange.STATE if dim == SEQ else Exchange.NONE)]
