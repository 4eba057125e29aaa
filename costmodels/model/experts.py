"""Experts spread over the ep axis: which operators run on them, and what goes to their ranks and back.

Routing gives an expert the rows of any rank, so everything between the first and the last product with a weight for each
expert runs on the rank that holds the expert. Tensors that enter that region, or leave it, are exchanged by an all-to-all
(GShard, Lepikhin et al. 2020, section 3.2: dispatch and combine); backward, their gradients go the other way.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.dims import SEQ
from meshwright.costmodels.model.operators import Operator, OperatorKind, Tensor
from meshwright.costmodels.units import STRICT_RECORD, NonNegativeFloat, NonNegativeInt


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


# Where tokens go among experts: shares of the experts, copies of the hottest ones, and what the fullest rank gets.
#
# A token picks ``top_k`` different experts. Shares say how often each is picked; balanced, a power
# law, or a histogram of counts as measured. Ranks hold experts in order, or, where hot experts have
# copies, as evenly as greedy placement makes them (DeepSeek's expert-parallel load balancer works
# so).

Floats = NDArray[np.float64]

_PLACEMENTS = 32
"""Random orders of the experts over which the fullest rank of a power law is averaged; the law does not say which are hot."""


@dataclass(frozen=True, slots=True)
class BalancedRouting:
    """Every expert is as likely as any other."""

    __pydantic_config__ = STRICT_RECORD

    kind: Literal["balanced"]
    redundant_experts: NonNegativeInt = 0


@dataclass(frozen=True, slots=True)
class PowerLawRouting:
    """The i-th most popular expert is picked in proportion to i^-exponent; 0 is balanced. Which expert is hot is random."""

    __pydantic_config__ = STRICT_RECORD

    kind: Literal["power_law"]
    exponent: NonNegativeFloat
    redundant_experts: NonNegativeInt = 0


@dataclass(frozen=True, slots=True)
class HistogramRouting:
    """Tokens counted at each expert of a layer, in the order in which ranks hold them."""

    __pydantic_config__ = STRICT_RECORD

    kind: Literal["histogram"]
    counts: tuple[NonNegativeFloat, ...]
    redundant_experts: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if not self.counts or sum(self.counts) <= 0.0:
            raise WorkloadError("a routing histogram needs a count for each expert, not all zero", given=self.counts)


ExpertRouting = BalancedRouting | PowerLawRouting | HistogramRouting
"""``redundant_experts`` are copies of the hottest experts, over all ranks (vLLM, --eplb-config num_redundant_experts)."""

BALANCED = BalancedRouting("balanced")


@dataclass(frozen=True, eq=False)
class ExpertPlacement:
    """Experts on ranks: ``picked`` [order, rank, slot] is the chance that a token picks what lies in a slot of an ep rank;
    one order, or several that are averaged. A token picks ``top_k`` of the ``experts`` that ``ep`` ranks hold."""

    picked: Floats
    experts: int
    top_k: int
    ep: int

    @property
    def slots(self) -> int:
        """Experts and copies that each rank holds."""
        return int(self.picked.shape[2])

    @property
    def popularity(self) -> float:
        """Rows that a token is expected to bring the fullest rank."""
        return float(np.mean(np.max(self.picked.sum(axis=2), axis=1)))

    @property
    def skew(self) -> float:
        """Rows of the fullest rank over those of the mean rank, of many tokens; 1 where all experts are as popular."""
        return self.popularity * self.ep / self.top_k

    def fullest_rows(self, tokens: Floats) -> Floats:
        """Expected routed rows of the fullest rank.

        Which rank gets how many of a step's rows is chance: where all are as popular, the fullest is that of ``ep`` draws.
        Every step waits for it.
        """
        mean = self.top_k / self.ep
        # A token picks different experts: hypergeometric, of all experts those that a rank holds.
        spread = mean * (1.0 - 1.0 / self.ep) * (self.experts - self.top_k) / max(1, self.experts - 1)
        drawn = tokens * mean + np.sqrt(tokens * spread) * largest_of_draws(self.ep)
        return np.minimum(np.maximum(tokens * self.popularity, drawn), tokens * min(self.top_k, self.slots))

    def most_active(self, tokens: Floats) -> Floats:
        """Expected distinct experts that get a row, on the rank where they are most: 1 - (1 - p)^tokens each, of as many
        tokens as would bring the fullest rank its rows."""
        counted = self.fullest_rows(tokens) / self.popularity
        missed = np.exp(counted[:, None, None, None] * np.log1p(-np.minimum(self.picked, 1.0 - 1e-12)))
        active = np.mean(np.max(np.sum(1.0 - missed, axis=3), axis=2), axis=1)
        return np.asarray(np.maximum(1.0, active))


def largest_of_draws(count: int) -> float:
    """Expected largest of ``count`` draws of a standard normal distribution (Blom 1958: the (n - 3/8) / (n + 1/4) quantile)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


@cache
def expert_placement(routing: ExpertRouting, *, experts: int, top_k: int, ep: int) -> ExpertPlacement:
    """Experts of a layer on ``ep`` ranks. Raises WorkloadError where the histogram or the copies do not fit the model."""
    slots, rest = divmod(experts + routing.redundant_experts, ep)
    if rest:
        raise WorkloadError(
            "experts and their copies do not divide by ep", given=(experts, routing.redundant_experts, ep), allowed="a multiple"
        )
    picked = _picked(_shares(routing, experts), top_k)
    if isinstance(routing, BalancedRouting) and not routing.redundant_experts:
        # All ranks are alike: one stands for all.
        return ExpertPlacement(picked[:slots].reshape(1, 1, slots), experts, top_k, ep)
    orders = [picked]
    if isinstance(routing, PowerLawRouting) and not routing.redundant_experts:
        random = np.random.Generator(np.random.PCG64(0))
        orders = [random.permutation(picked) for _ in range(_PLACEMENTS)]
    placed = np.stack([_placed(order, ep, slots, routing.redundant_experts) for order in orders])
    return ExpertPlacement(placed, experts, top_k, ep)


def _shares(routing: ExpertRouting, experts: int) -> Floats:
    match routing:
        case BalancedRouting():
            return np.full(experts, 1.0 / experts)
        case PowerLawRouting():
            weights = np.arange(1.0, experts + 1.0) ** -routing.exponent
            return np.asarray(weights / weights.sum())
        case HistogramRouting():
            if len(routing.counts) != experts:
                raise WorkloadError(
                    "the routing histogram is not of this model", given=len(routing.counts), allowed=str(experts)
                )
            counts = np.array(routing.counts, np.float64)
            return np.asarray(counts / counts.sum())


def _picked(shares: Floats, top_k: int) -> Floats:
    """Chances that a token picks each expert: top_k times its share, none above one; what is cut off goes to the others."""
    picked = np.minimum(1.0, top_k * shares)
    for _ in range(len(shares)):
        missing = top_k - float(picked.sum())
        free = picked < 1.0
        if missing <= 1e-12 or not free.any() or float(picked[free].sum()) == 0.0:
            break
        picked[free] = np.minimum(1.0, picked[free] * (1.0 + missing / picked[free].sum()))
    return picked


def _placed(picked: Floats, ep: int, slots: int, copies: int) -> Floats:
    """[rank, slot] chances: in order without copies, else each next hottest copy on the rank with the least so far."""
    if not copies:
        return picked.reshape(ep, slots)
    load = _copied(picked, copies)
    ranks: list[list[float]] = [[] for _ in range(ep)]
    waiting = [(0.0, rank) for rank in range(ep)]
    for value in sorted(load, reverse=True):
        total, rank = heapq.heappop(waiting)
        ranks[rank].append(value)
        if len(ranks[rank]) < slots:
            heapq.heappush(waiting, (total + value, rank))
    return np.array(ranks)


def _copied(picked: Floats, copies: int) -> Sequence[float]:
    """Chances by slot once the expert with the most rows a copy has been copied, ``copies`` times over."""
    count = np.ones(len(picked), np.int64)
    for _ in range(copies):
        count[int(np.argmax(picked / count))] += 1
    return [float(chance) / int(n) for chance, n in zip(picked, count, strict=True) for _ in range(int(n))]
