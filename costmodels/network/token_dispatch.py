"""The dispatch of tokens to the ranks of their experts: a copy for each expert, or one for each node and rank, under routing
limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache

from meshwright.costmodels.cluster.cluster import GroupTopology
from meshwright.costmodels.model.dims import EXPERT_GROUPS, EXPERTS, TOP_GROUPS, TOP_K
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.units import DType


class TokenDispatch(StrEnum):
    """The copies that a dispatcher of tokens sends over the ranks that hold experts."""

    COPIES = "copies"
    """A copy of a token for each of its experts, by one all-to-all (GShard; Megatron-LM's alltoall dispatcher)."""
    ONCE_A_NODE = "once_a_node"
    """A token once to each node that has experts of its, which hands it to their ranks, and sums on the way back (DeepSeek-V3
    report, section 3.2.2; DeepEP)."""


class DispatchFormat(StrEnum):
    """Number format of tokens, and of the gradients of their sums, on their way to experts; what comes back is in the working
    format."""

    WORKING = "working"
    FP8 = "fp8"
    """One scale in fp32 for 128 elements (DeepSeek-V3 report, section 3.3.3, low-precision communication; 3.3.2)."""

    def bytes_of(self, elements: float, dtype: DType) -> float:
        """Bytes of elements, which are of ``dtype`` while operators work on them."""
        return elements * (dtype.size_bytes if self is DispatchFormat.WORKING else 1 + DType.FP32.size_bytes / _ONE_SCALE)


_ONE_SCALE = 128


@dataclass(frozen=True, slots=True)
class ExpertChoice:
    """The experts that a token may pick: ``top_k`` of all, or of those in ``top_groups`` of the ``groups`` that they lie in, in
    order (device- or node-limited routing: DeepSeek-V2 report, section 2.1.3; V3's ``n_group`` and ``topk_group``)."""

    experts: int
    top_k: int
    groups: int = 1
    top_groups: int = 1


def expert_choice(dims: Mapping[str, int]) -> ExpertChoice:
    """The choice that a model's dims state."""
    return ExpertChoice(dims[EXPERTS], dims.get(TOP_K, 1), dims.get(EXPERT_GROUPS, 1), dims.get(TOP_GROUPS, 1))


@cache
def places_reached(choice: ExpertChoice, places: int) -> float:
    """Expected number of distinct places, each with an equal run of the experts, that one token's experts lie on.

    All groups, and in them all experts, are as likely as others. Of the experts of a place ``x`` are in chosen groups, and
    none of those is picked in C(n - x, k) of C(n, k) cases, where the chosen groups have n.
    """
    each = choice.experts // places
    chosen = choice.top_groups * choice.experts // choice.groups
    every = math.comb(chosen, choice.top_k)
    reached = 0.0
    for place in range(places):
        ways = _ways_in_groups(choice, place * each, (place + 1) * each)
        missed = sum(count * math.comb(chosen - x, choice.top_k) for x, count in ways.items())
        reached += 1.0 - missed / (every * math.comb(choice.groups, choice.top_groups))
    return reached


def _ways_in_groups(choice: ExpertChoice, first: int, end: int) -> dict[int, int]:
    """In how many choices of groups so many of the experts first .. end - 1 are in chosen ones."""
    size = choice.experts // choice.groups
    inside = [max(0, min(end, (g + 1) * size) - max(first, g * size)) for g in range(choice.groups)]
    ways = {(0, 0): 1}
    for held in inside:
        more: dict[tuple[int, int], int] = {}
        for (picked, x), count in ways.items():
            for state in ((picked, x), (picked + 1, x + held)):
                if state[0] <= choice.top_groups:
                    more[state] = more.get(state, 0) + count
        ways = more
    return {x: count for (picked, x), count in ways.items() if picked == choice.top_groups}


def dispatch_s(dispatch: TokenDispatch, token_bytes: float, choice: ExpertChoice, ranks: GroupTopology) -> float:
    """Seconds in which each rank's tokens, ``token_bytes`` in all, get to the ranks of their experts; back takes as long.

    One to each node goes over the network while nodes hand those that came to the ranks over their fabric.
    """
    if dispatch is TokenDispatch.COPIES:
        return float(collective_s(Collective.ALL_TO_ALL, choice.top_k * token_bytes, ranks))
    here = ranks.ranks_per_node
    on_ranks = places_reached(choice, ranks.n) * token_bytes
    if not ranks.spans_nodes:
        return float(collective_s(Collective.ALL_TO_ALL, on_ranks, ranks))
    nodes = -(-ranks.n // here)
    # A rank of a node's ``here`` sends to its peers on other nodes by its share of the network cards.
    network = replace(ranks, n=nodes, ranks_per_node=1, inter_bytes_per_s=ranks.inter_bytes_per_s / here)
    network_s = float(collective_s(Collective.ALL_TO_ALL, places_reached(choice, nodes) * token_bytes, network))
    fabric = replace(ranks, n=here)
    return max(network_s, float(collective_s(Collective.ALL_TO_ALL, on_ranks, fabric)))
