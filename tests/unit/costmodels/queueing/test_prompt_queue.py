from __future__ import annotations

import numpy as np
import pytest

from meshwright.costmodels.queueing.analytic.prompt_queue import BINS, BINS_OF_A_FACTOR, PromptSteps, first_token_times

STEP_S = 0.2


def mean_first_token_s(steps: PromptSteps, arrivals_per_s: float, cells: int = 120) -> float:
    times = np.zeros(BINS)
    first_token_times(steps, arrivals_per_s, STEP_S / 2.0, cells, times)
    assert times.sum() == pytest.approx(1.0, abs=1e-3)
    return float(times @ (STEP_S / 2.0 * 10.0 ** (np.arange(BINS) / BINS_OF_A_FACTOR)))


@pytest.mark.parametrize("utilisation", [0.2, 0.5, 0.8])
def test_one_prompt_a_step_is_m_d_1(utilisation: float) -> None:
    steps = PromptSteps(np.array([0.0, STEP_S]), 1.0, np.array([0.0, 1.0]), 0.0, 1.0, 0, 1.0)
    expected = STEP_S + utilisation * STEP_S / (2.0 * (1.0 - utilisation))
    assert mean_first_token_s(steps, utilisation / STEP_S) == pytest.approx(expected, rel=0.02)


def test_steps_with_room_for_all_keep_nobody_longer_than_two() -> None:
    steps = PromptSteps(np.full(21, STEP_S), 20.0, np.array([0.0, 1.0]), 0.0, 1.0, 0, 0.0)
    # Half a step until the one under way ends, on average, and a whole one.
    assert mean_first_token_s(steps, 3.0 / STEP_S) == pytest.approx(1.5 * STEP_S, rel=0.01)


def test_mean_step_has_what_arrives_in_it() -> None:
    # A step of c cells takes 1 + c / 10 of the empty one, and each arrival is a cell: T = T0 / (1 - rate T0 / 10).
    steps = PromptSteps(STEP_S * (1.0 + np.arange(25) / 10.0), 24.0, np.array([0.0, 1.0]), 0.0, 1.0, 0, 0.0)
    rate = 2.0 / STEP_S
    between_s, _ = first_token_times(steps, rate, 1.0, 60, np.zeros(0))
    assert between_s == pytest.approx(STEP_S / (1.0 - rate * STEP_S / 10.0), rel=1e-6)


def test_pipelines_hold_their_prompts_longer() -> None:
    step_s, prompt = np.array([0.01, STEP_S]), np.array([0.0, 1.0])
    one = PromptSteps(step_s, 1.0, prompt, 0.0, 1.0, 0, 0.0)
    two = PromptSteps(step_s, 1.0, prompt, STEP_S, 2.0, 0, 0.0)
    assert mean_first_token_s(two, 1.0) > mean_first_token_s(one, 1.0) + STEP_S
