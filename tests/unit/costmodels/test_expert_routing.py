from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.experts import BALANCED, BalancedRouting, HistogramRouting, PowerLawRouting, expert_placement

TOKENS = np.array([1.0, 4.0, 16.0, 64.0, 1024.0])


def simulated_fullest(experts: int, top_k: int, tokens: int, ep: int) -> tuple[float, float]:
    """Mean rows of the rank that gets most, and mean distinct experts of the one that has most, tokens choosing at random."""
    random = np.random.default_rng(5)
    rows, distinct = [], []
    for _ in range(300):
        picked = np.zeros(experts)
        for _ in range(tokens):
            picked[random.permutation(experts)[:top_k]] += 1
        ranks = picked.reshape(ep, -1)
        rows.append(ranks.sum(axis=1).max())
        distinct.append((ranks > 0).sum(axis=1).max())
    return float(np.mean(rows)), float(np.mean(distinct))


@pytest.mark.parametrize(("experts", "top_k", "ep"), [(32, 4, 1), (32, 4, 4), (128, 8, 4), (256, 8, 8)])
@pytest.mark.parametrize("tokens", [2, 4, 16])
def test_the_fullest_rank_is_that_of_a_simulation(experts: int, top_k: int, ep: int, tokens: int) -> None:
    placement = expert_placement(BALANCED, experts=experts, top_k=top_k, ep=ep)
    rows, distinct = simulated_fullest(experts, top_k, tokens, ep)
    count = np.array([float(tokens)])
    assert placement.fullest_rows(count)[0] == pytest.approx(rows, rel=0.12)
    assert placement.most_active(count)[0] == pytest.approx(distinct, rel=0.15)


def test_many_balanced_rows_are_shared_evenly() -> None:
    placement = expert_placement(BALANCED, experts=256, top_k=8, ep=8)
    many = np.array([1e6])
    assert placement.fullest_rows(many) == pytest.approx(many, rel=0.002)
    assert placement.slots == 32


def test_a_histogram_is_placed_in_order() -> None:
    routing = HistogramRouting("histogram", (4.0, 2.0, 1.0, 1.0))
    placement = expert_placement(routing, experts=4, top_k=1, ep=2)
    assert placement.fullest_rows(np.array([8.0])) == pytest.approx([6.0])
    # Two experts with half and a quarter of the tokens: 1 - (1 - p)^8 each.
    assert placement.most_active(np.array([8.0])) == pytest.approx([2 - 0.5**8 - 0.75**8])


def test_copies_of_hot_experts_even_out_the_ranks() -> None:
    plain = expert_placement(HistogramRouting("histogram", (9.0, 1.0, 1.0, 1.0)), experts=4, top_k=1, ep=2)
    copied = expert_placement(HistogramRouting("histogram", (9.0, 1.0, 1.0, 1.0), 2), experts=4, top_k=1, ep=2)
    assert plain.fullest_rows(np.array([12.0])) == pytest.approx([10.0])
    # Three copies of the hot expert take 3 each; two of them lie on one rank, with a cold one or without.
    assert copied.fullest_rows(np.array([12.0]))[0] < 7.5
    assert copied.slots == 3


@given(st.floats(0.0, 1.5), st.sampled_from([1, 2, 4, 8]))
def test_every_row_goes_somewhere_and_skew_never_helps(exponent: float, ep: int) -> None:
    skewed = expert_placement(PowerLawRouting("power_law", exponent), experts=32, top_k=4, ep=ep)
    assert skewed.picked.sum(axis=(1, 2)) == pytest.approx(4.0)
    assert np.all(skewed.picked <= 1.0)
    balanced = expert_placement(BALANCED, experts=32, top_k=4, ep=ep)
    assert np.all(skewed.fullest_rows(TOKENS) >= balanced.fullest_rows(TOKENS) * (1 - 1e-9))


def test_what_does_not_fit_the_model_is_refused() -> None:
    with pytest.raises(WorkloadError, match="not of this model"):
        expert_placement(HistogramRouting("histogram", (1.0, 2.0)), experts=4, top_k=1, ep=1)
    with pytest.raises(WorkloadError, match="do not divide by ep"):
        expert_placement(BalancedRouting("balanced", redundant_experts=3), experts=8, top_k=2, ep=4)
    with pytest.raises(WorkloadError, match="not all zero"):
        HistogramRouting("histogram", (0.0, 0.0))
