"""Strategies of an operator on the tp axis, and what each needs of its neighbours.

A strategy shards one named dim of the operator, or replicates it. From that follow, mechanically: the layout of every
input and output, which gradients are partial sums, and the collectives between two operators. Column and row tensor
parallelism, sequence parallelism and vocabulary parallelism are points of this space, not special cases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from meshwright.costmodels.model.dims import (
    BATCH,
    EXPERT_FFN,
    FFN,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    SEQ,
    SHARED_FFN,
    SSM_GROUPS,
    SSM_HEADS,
    VOCAB,
)
from meshwright.costmodels.model.experts import expert_dims
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor
from meshwright.costmodels.network.collectives import Collective
from meshwright.solver.problem.choices import Space
from meshwright.solver.problem.declared.operator_splits import OperatorSplit

REPLICATE = "replicate"
STORED_SPLIT = "+weights"
MEGATRON_DIMS = (HEADS, FFN, EXPERT_FFN, SHARED_FFN, SSM_HEADS, VOCAB)
"""Dims that Megatron-style launchers shard over tp in matrix operators (column, row and vocabulary parallel)."""

_FOLLOWS = {HEADS: (KV_HEADS,), SSM_HEADS: (SSM_GROUPS,)}
"""Dims that are sharded with another one: key/value heads go with the query heads that use them, groups of B and C with
the heads of a state-space mixer."""

_FOLLOWERS = tuple(name for names in _FOLLOWS.values() for name in names)

_NORMALISED_IN_GROUPS = (SSM_HEADS,)
"""Dims that a norm does not reduce over although its weight has them: a state-space mixer's gated norm works by group."""


class SpecKind(StrEnum):
    """The layout of a tensor on the tp axis."""

    REPLICATED = "replicated"
    SHARDED = "sharded"
    PARTIAL = "partial"


@dataclass(frozen=True, slots=True)
class Spec:
    """Layout of a tensor on the tp axis: replicated, sharded on a dim, or partial sums to be added."""

    kind: SpecKind
    dim: str | None = None


REPLICATED = Spec(SpecKind.REPLICATED)
PARTIAL = Spec(SpecKind.PARTIAL)


def sharded(dim: str) -> Spec:
    """Layout of a tensor whose ``dim`` is split over the axis."""
    return Spec(SpecKind.SHARDED, dim)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to place an operator on the tp axis: the dim it shards, or None to replicate it; ``stores_split`` where each rank
    keeps a share of the weights that all use whole."""

    dim: str | None
    stores_split: bool = False

    @property
    def name(self) -> str:
        """The name that plans carry: the sharded dim, or "replicate"; "+weights" behind it where their storage is split."""
        return (REPLICATE if self.dim is None else self.dim) + (STORED_SPLIT if self.stores_split else "")

    @classmethod
    def named(cls, name: str) -> Strategy:
        """The strategy of a name."""
        dim = name.removesuffix(STORED_SPLIT)
        return cls(None if dim == REPLICATE else dim, stores_split=dim != name)

    def dims(self) -> tuple[str, ...]:
        """All dims split by the strategy, those that follow included."""
        return () if self.dim is None else (self.dim, *_FOLLOWS.get(self.dim, ()))

    def whole_elements(self, operator: Operator, sizes: Mapping[str, int]) -> int:
        """Elements, with dims of ``sizes``, of the weights that every rank uses whole; of tied ones none, which others hold."""
        whole = (weight for weight in operator.weights if weight.tied_to is None and set(weight.dims).isdisjoint(self.dims()))
        return sum(weight.elements(sizes) for weight in whole)

    def local_sizes(self, sizes: Mapping[str, int], tp: int) -> dict[str, int]:
        """Sizes of dims on one rank, rounded up where a dim is padded; key/value heads fewer than tp are one on each rank."""
        local = dict(sizes)
        for dim in self.dims():
            if dim in local:
                local[dim] = -(-local[dim] // tp)
        return local

    def spec(self, tensor: Tensor) -> Spec:
        """Layout in which the operator reads or writes a tensor, partial sums aside."""
        for dim in self.dims():
            if dim in tensor.dims:
                return sharded(dim)
        return REPLICATED

    def output_spec(self, operator: Operator, tensor: Tensor) -> Spec:
        """Layout of an output: partial sums where the sharded dim is summed away."""
        spec = self.spec(tensor)
        if spec is REPLICATED and self.dim is not None and _sums_away(operator, self.dim):
            return PARTIAL
        return spec

    def input_gradient_spec(self, operator: Operator, tensor: Tensor) -> Spec:
        """Layout of the gradient of an input: partial sums where every rank has only its share of the outputs."""
        spec = self.spec(tensor)
        if spec is REPLICATED and self.dim is not None:
            return PARTIAL
        return spec

    def output_gradient_spec(self, tensor: Tensor) -> Spec:
        """Layout in which the operator wants the gradient of an output."""
        return self.spec(tensor)


def strategies(
    operator: Operator,
    sizes: Mapping[str, int],
    tp: int,
    space: Space,
    *,
    padded: frozenset[str] = frozenset(),
    splits: Collection[OperatorSplit] = (),
) -> tuple[Strategy, ...]:
    """Strategies of an operator in a space, in canonical order; empty when the space has none (a dim does not divide).

    Launchable: matrix operators shard heads, ffn or vocab as launchers do; norms and other vector operators on the
    residual stream are replicated or sharded over the sequence (sequence parallelism), and what works on key/value heads
    alone stays with them. Free: every dim that divides, and of ``splits`` what it says.
    ``padded`` dims are filled up where they do not divide (Megatron-LM's --make-vocab-size-divisible-by).
    """
    if tp == 1:
        return (Strategy(None),)
    legal = [dim for dim in shardable_dims(operator) if dim in padded or _divides(dim, sizes, tp)]
    if space is Space.FREE:
        if OperatorSplit.BATCH in splits and sizes[BATCH] % tp == 0:
            legal.append(BATCH)
        found = (Strategy(None), *(Strategy(dim) for dim in legal))
        kept = found if OperatorSplit.WEIGHTS in splits else ()
        return (*found, *(replace(each, stores_split=True) for each in kept if _can_store_split(operator, each, sizes, tp)))
    parallel = [dim for dim in MEGATRON_DIMS if dim in operator.dims]
    if parallel:
        return tuple(Strategy(dim) for dim in parallel[:1] if dim in legal)
    following = [dim for dim in _FOLLOWERS if dim in legal]
    if following:
        return (Strategy(following[0]),)
    return (Strategy(None), *(Strategy(dim) for dim in legal if dim == SEQ))


def _can_store_split(operator: Operator, strategy: Strategy, sizes: Mapping[str, int], tp: int) -> bool:
    """Return True if weights of a product are used whole by all ranks, which can store a share each; a tied weight is stored
    once for several operators, and experts have an axis of their own."""
    product = operator.kind is OperatorKind.MATMUL and not expert_dims(operator)
    tied = any(weight.tied_to is not None for weight in operator.weights)
    elements = strategy.whole_elements(operator, sizes)
    return product and not tied and elements > 0 and elements % tp == 0


def shardable_dims(operator: Operator) -> list[str]:
    """Dims that may be split without changing what the operator computes, in canonical order."""
    led = {follower for leader, followers in _FOLLOWS.items() if leader in operator.dims for follower in followers}
    candidates = sorted(operator.dims - {BATCH, HEAD_DIM} - led)
    if operator.kind is OperatorKind.ATTENTION:
        # Over the sequence, attention is context parallelism: the cp axis, not this one.
        return [dim for dim in candidates if dim == HEADS]
    if operator.kind is OperatorKind.NORM:
        # A norm reduces over its weight's dims, or the last dim of an unweighted input.
        reduced = {dim for weight in operator.weights for dim in weight.dims} or {operator.inputs[0].dims[-1]}
        return [dim for dim in candidates if dim not in reduced or dim in _NORMALISED_IN_GROUPS]
    if operator.kind is OperatorKind.ELEMENTWISE:
        return [dim for dim in candidates if all(_has(dim, tensor) for tensor in (*operator.inputs, *operator.outputs))]
    if operator.kind in (OperatorKind.SCAN, OperatorKind.CONVOLUTION):
        # Over the sequence these pass a state or a margin on: another axis than this one.
        return [dim for dim in candidates if dim == SSM_HEADS]
    if operator.kind is OperatorKind.LOSS:
        return [dim for dim in candidates if dim in operator.inputs[0].dims]
    return candidates


def _has(dim: str, tensor: Tensor) -> bool:
    return dim in tensor.dims or any(follower in tensor.dims for follower in _FOLLOWS.get(dim, ()))


def _sums_away(operator: Operator, dim: str) -> bool:
    """Return True if the operator reduces over the dim: a contraction, a lookup in a split table, or a loss over shares."""
    if operator.kind is OperatorKind.MATMUL:
        return dim in operator.contracted_dims
    return operator.kind in (OperatorKind.EMBEDDING, OperatorKind.LOSS)


def _divides(dim: str, sizes: Mapping[str, int], tp: int) -> bool:
    if dim in _FOLLOWERS:
        return sizes[dim] > 1 and _is_shared(sizes[dim], tp)
    if sizes.get(dim, 0) % tp:
        return False
    return all(_is_shared(sizes[follower], tp) for follower in _FOLLOWS.get(dim, ()) if follower in sizes)


def _is_shared(count: int, tp: int) -> bool:
    """Return True if ranks have equally many of what follows, or copies of one."""
    return count % tp == 0 or tp % count == 0


def conversion(source: Spec, target: Spec) -> Collective | None:
    """The collective that turns one layout into another, None when it is free (nothing to do, or a local slice).

    Raises ValueError when the target is partial: no reader asks for partial sums.
    """
    if target.kind is SpecKind.PARTIAL:
        raise ValueError("no operator reads partial sums")
    if source.kind is SpecKind.PARTIAL:
        return Collective.ALL_REDUCE if target.kind is SpecKind.REPLICATED else Collective.REDUCE_SCATTER
    if source.kind is SpecKind.SHARDED:
        if target.kind is SpecKind.REPLICATED:
            return Collective.ALL_GATHER
        return None if source.dim == target.dim else Collective.ALL_TO_ALL
    return None


def boundary_specs(tp: int, seq_len: int) -> Iterable[Spec]:
    """Layouts that the residual stream may have between blocks, in canonical order."""
    yield REPLICATED
    if tp > 1 and seq_len % tp == 0:
        yield sharded(SEQ)
