"""Tokens on their way to experts: places that routing reaches, and what sending one copy to each takes."""

from __future__ import annotations

import itertools
from statistics import mean

import pytest

from meshwright.costmodels.cluster.cluster import Cluster, GroupTopology, NodeGroup, group_topology
from meshwright.costmodels.hardware import node_type
from meshwright.costmodels.network.collectives import Collective, collective_s
from meshwright.costmodels.network.token_dispatch import (
    DispatchFormat,
    ExpertChoice,
    TokenDispatch,
    dispatch_s,
    expert_choice,
    places_reached,
)
from meshwright.costmodels.units import DType

DEEPSEEK_V3 = ExpertChoice(256, 8, 8, 4)
CLUSTER = Cluster((NodeGroup("a", node_type("dgx-h100"), 8),))
TOKENS_BYTES = 4096 * 7168 * 2.0


def ranks(n: int) -> GroupTopology:
    return group_topology(CLUSTER, n=n, stride=1)


def seconds(dispatch: TokenDispatch, choice: ExpertChoice, n: int) -> float:
    return dispatch_s(dispatch, TOKENS_BYTES, choice, ranks(n))


@pytest.mark.parametrize("places", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize(("top_k", "groups", "top_groups"), [(1, 1, 1), (3, 1, 1), (2, 4, 2), (3, 6, 2), (2, 3, 1), (4, 4, 3)])
def test_places_reached_are_the_mean_over_every_choice(places: int, top_k: int, groups: int, top_groups: int) -> None:
    experts, size = 12, 12 // groups
    reached = [
        len({expert * places // experts for expert in picked})
        for chosen in itertools.combinations(range(groups), top_groups)
        for picked in itertools.combinations([e for e in range(experts) if e // size in chosen], top_k)
    ]
    assert places_reached(ExpertChoice(experts, top_k, groups, top_groups), places) == pytest.approx(mean(reached))


def test_limited_routing_reaches_fewer_nodes() -> None:
    """DeepSeek-V3: at most four of eight nodes, 3.6 on average; 5.3 without the limit."""
    assert places_reached(DEEPSEEK_V3, 8) == pytest.approx(3.629, abs=1e-3)
    assert places_reached(ExpertChoice(256, 8), 8) == pytest.approx(5.295, abs=1e-3)
    assert places_reached(ExpertChoice(256, 8), 256) == pytest.approx(8.0)
    assert expert_choice({"experts": 64, "top_k": 6}) == ExpertChoice(64, 6)


def test_one_copy_a_node_is_sent_faster_and_by_limits_faster_still() -> None:
    free = ExpertChoice(256, 8)
    copies = seconds(TokenDispatch.COPIES, DEEPSEEK_V3, 64)
    assert copies == collective_s(Collective.ALL_TO_ALL, 8 * TOKENS_BYTES, ranks(64))
    assert copies == seconds(TokenDispatch.COPIES, free, 64), "where copies go does not change how many there are"
    limited, open_ = (seconds(TokenDispatch.ONCE_A_NODE, choice, 64) for choice in (DEEPSEEK_V3, free))
    assert limited < open_ < copies
    assert limited / copies == pytest.approx(3.629 / 8, rel=0.05), "the network decides"
    assert open_ / copies == pytest.approx(5.295 / 8, rel=0.05)


def test_inside_a_node_a_rank_gets_one_copy() -> None:
    one = ExpertChoice(8, 1)
    assert seconds(TokenDispatch.ONCE_A_NODE, one, 8) == pytest.approx(seconds(TokenDispatch.COPIES, one, 8))
    many = ExpertChoice(64, 8)
    assert seconds(TokenDispatch.ONCE_A_NODE, many, 8) < seconds(TokenDispatch.COPIES, many, 8)
    assert dispatch_s(TokenDispatch.ONCE_A_NODE, TOKENS_BYTES, many, ranks(1)) == 0.0


def test_fp8_on_the_way_to_experts_has_a_scale_for_128_elements() -> None:
    assert DispatchFormat.WORKING.bytes_of(256, DType.BF16) == 512
    assert DispatchFormat.FP8.bytes_of(256, DType.BF16) == 256 + 2 * 4
