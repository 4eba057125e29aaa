"""Experts spread over the ep axis: which operators run on them, and what goes to their ranks and back.

Routing gives an expert the rows of any rank, so everything between the first and the last product with a weight for each
expert runs on the rank that holds the expert. Tensors that enter that region, or leave it, are exchanged by an all-to-all
(GShard, Lepikhin et al. 2020, section 3.2: dispatch and combine); backward, their gradients go the other way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.costmodels.model.dims import SEQ
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor


@dataclass(frozen=True, slots=True)
class ExpertRegion:
    """Operators that run where the experts are.

    operators   names of the products with a weight for each expert, and of what lies between them
    tensors     names of the tensors that they read or write: their rows are those that routing sent to the rank
    dims        dims that routing picks from, of which each ep rank holds a share
    exchanged   (operator, tensor): tensors on their way to the experts by the operator outside that writes them, on their
                way back by the operator outside that reads them
    """

    operators: frozenset[str]
    tensors: frozenset[str]
    dims: frozenset[str]
    exchanged: tuple[tuple[str, Tensor], ...]

    def local_sizes(self, operator: Operator, sizes: Mapping[str, int], *, ep: int, load: float = 1.0) -> dict[str, int]:
        """Sizes on one ep rank: its share of the experts, and ``load`` times the rows where tokens spread unevenly."""
        local = dict(sizes)
        if operator.name in self.operators:
            for dim in self.dims:
                if dim in local:
                    local[dim] = -(-local[dim] // ep)
            local[SEQ] = max(1, round(local[SEQ] * load))
        return local


def expert_dims(operator: Operator) -> tuple[str, ...]:
    """Dims of a product's weights of which routing picks one index for each row (rows of an embedding table are no experts)."""
    return operator.routed_dims if operator.kind is OperatorKind.MATMUL else ()


def expert_region(operators: Sequence[Operator]) -> ExpertRegion:
    """The region of a block's operators; empty where routing picks no weights."""
    routed = {operator.name for operator in operators if expert_dims(operator)}
    inside = routed | _between(operators, routed)
    writer = {tensor.name: operator.name for operator in operators for tensor in operator.outputs}
    exchanged: dict[tuple[str, str], Tensor] = {}
    touched: set[str] = set()
    for operator in operators:
        for tensor in operator.inputs:
            source_inside = writer.get(tensor.name) in inside
            if operator.name in inside and not source_inside and tensor.name in writer:
                exchanged[writer[tensor.name], tensor.name] = tensor
            elif operator.name not in inside and source_inside:
                exchanged[operator.name, tensor.name] = tensor
        if operator.name in inside:
            touched |= {tensor.name for tensor in (*operator.inputs, *operator.outputs)}
    return ExpertRegion(
        operators=frozenset(inside),
        tensors=frozenset(touched),
        dims=frozenset(dim for operator in operators for dim in expert_dims(operator)),
        exchanged=tuple((name, tensor) for (name, _), tensor in exchanged.items()),
    )


def _between(operators: Sequence[Operator], routed: set[str]) -> set[str]:
    """Element-wise operators that read only what the region writes, and whose result a routed product needs."""
    writer = {tensor.name: operator.name for operator in operators for tensor in operator.outputs}
    found: set[str] = set()
    while True:
        new = {
            operator.name
            for operator in operators
            if operator.kind is OperatorKind.ELEMENTWISE
            and operator.name not in found
            and all(writer.get(tensor.name) in routed | found for tensor in operator.inputs)
        }
        if not new:
            break
        found |= new
    readers: dict[str, set[str]] = {}
    for operator in operators:
        for tensor in operator.inputs:
            readers.setdefault(writer.get(tensor.name, ""), set()).add(operator.name)
    while True:
        useless = {name for name in found if not readers.get(name, set()) & (routed | found)}
        if not useless:
            return found
        found -= useless
