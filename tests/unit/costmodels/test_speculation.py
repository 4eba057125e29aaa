"""Tokens that a verified step gives, and how many steps a request takes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.serving.speculation import Draft, DraftMethod, Speculation, drawn_rounds

DRAFT = Draft(DraftMethod.MTP, relative_cost=0.02)


def speculation(draft_tokens: int, acceptance: float) -> Speculation:
    return Speculation(draft_tokens, acceptance, DRAFT)


def tokens_per_step(by: Speculation) -> float:
    """Expected tokens that a step gives a sequence: (1 - a^(k+1)) / (1 - a) (Leviathan et al. 2023, eq. 1)."""
    return sum(by.acceptance**kept for kept in range(by.draft_tokens + 1))


@pytest.mark.parametrize(("draft_tokens", "acceptance"), [(1, 0.8), (4, 0.7), (8, 0.95), (3, 0.2)])
def test_long_answers_take_as_many_steps_as_the_formula_says(draft_tokens: int, acceptance: float) -> None:
    given_by = speculation(draft_tokens, acceptance)
    rounds = drawn_rounds(np.full(400, 5_000), given_by, seed=3)
    # Of some 400 x 1,000 steps; the last one of an answer gives half a step's tokens too many on average.
    assert 5_000 / rounds.mean() == pytest.approx(tokens_per_step(given_by), rel=0.003)


def exact_mean_rounds(tokens: int, draft_tokens: int, acceptance: float) -> float:
    """By all outcomes of the first step: j kept tokens with chance a^j (1 - a), all k with a^k."""
    chances = [acceptance**j * (1.0 - acceptance) for j in range(draft_tokens)] + [acceptance**draft_tokens]

    @cache
    def left(tokens: int) -> float:
        if tokens <= 0:
            return 0.0
        return 1.0 + sum(chance * left(tokens - kept - 1) for kept, chance in enumerate(chances))

    return left(tokens)


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 20])
def test_short_answers_take_as_many_steps_as_all_outcomes_together_say(tokens: int) -> None:
    rounds = drawn_rounds(np.full(200_000, tokens), speculation(3, 0.6), seed=1)
    assert rounds.mean() == pytest.approx(exact_mean_rounds(tokens, 3, 0.6), rel=0.005)


@given(
    tokens=st.lists(st.integers(0, 300), min_size=1, max_size=20),
    draft_tokens=st.integers(1, 8),
    acceptance=st.floats(0.0, 1.0),
    seed=st.integers(0, 1000),
)
def test_rounds_are_between_the_least_and_one_a_token(
    tokens: list[int], draft_tokens: int, acceptance: float, seed: int
) -> None:
    given_by = speculation(draft_tokens, acceptance)
    wanted = np.array(tokens)
    rounds = drawn_rounds(wanted, given_by, seed=seed)
    assert np.array_equal(rounds, drawn_rounds(wanted, given_by, seed=seed))
    assert np.all(rounds >= -(-wanted // given_by.query_tokens)) and np.all(rounds <= wanted)


def test_certain_proposals_draw_no_chance() -> None:
    tokens = np.array([0, 1, 4, 5, 11])
    assert drawn_rounds(tokens, speculation(4, 1.0), seed=0).tolist() == [0, 1, 1, 1, 3]
    assert drawn_rounds(tokens, speculation(4, 0.0), seed=0).tolist() == tokens.tolist()


def test_only_drafts_with_weights_of_their_own_name_a_checkpoint() -> None:
    with pytest.raises(WorkloadError, match="no checkpoint of its own"):
        Draft(DraftMethod.NGRAM, relative_cost=0.0, model="org/draft")
