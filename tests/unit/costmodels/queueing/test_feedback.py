from __future__ import annotations

import numpy as np
import pytest

from meshwright.costmodels.queueing.analytic.percentiles import Cumulants, Feedback, present, stay_s

ROUNDS, BASE_S, RATE = 500.0, 0.01, 2.0
FIXED = np.array([ROUNDS])


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_prompts_alone_interrupt_as_in_gaver(share: float) -> None:
    prompt_s = share / RATE
    feedback = Feedback(BASE_S, 0.0, 0.0, (prompt_s, prompt_s**2, prompt_s**3), FIXED, RATE)
    stay, sequences = stay_s(feedback, ROUNDS), present(feedback)
    work_s = ROUNDS * BASE_S
    # What arrived while the request's own prompt was computed interrupts it too.
    own_s = share * prompt_s / (1.0 - share)
    assert stay.mean == pytest.approx(work_s / (1.0 - share) + own_s, rel=1e-6)
    # Completion time with interruptions: work x rate x delay^2 / (1 - share)^3 (Gaver 1962).
    own_variance = share * prompt_s**2 / (1.0 - share) ** 3
    assert stay.variance == pytest.approx(work_s * RATE * prompt_s**2 / (1.0 - share) ** 3 + own_variance, rel=1e-6)
    # Sequences that came in a fixed work's time: clusters of Borel's distribution.
    assert sequences.mean == pytest.approx(RATE * work_s / (1.0 - share), rel=1e-6)
    assert sequences.variance == pytest.approx(sequences.mean / (1.0 - share) ** 2, rel=1e-6)


@pytest.mark.parametrize("brings", [0.2, 0.6])
@pytest.mark.parametrize("rounds", [FIXED, np.array([100.0, 300.0, 500.0, 1100.0])])
def test_sequences_alone_slow_rounds_down(brings: float, rounds: np.ndarray) -> None:
    sequence_s = brings / (RATE * float(np.mean(rounds)))
    feedback = Feedback(BASE_S, sequence_s, 0.0, (0.0, 0.0, 0.0), rounds, RATE)
    expected = RATE * float(np.mean(rounds)) * BASE_S / (1.0 - brings)
    assert present(feedback).mean == pytest.approx(expected, rel=0.04)
    # A round is base + sequences x cost, and its own sequence is one more than others see.
    round_s = BASE_S + sequence_s * expected
    assert stay_s(feedback, ROUNDS).mean / ROUNDS == pytest.approx(round_s, rel=0.05)


def test_nothing_varies_without_feedback() -> None:
    stay = stay_s(Feedback(BASE_S, 0.0, 0.0, (0.0, 0.0, 0.0), FIXED, RATE), ROUNDS)
    assert stay.mean == pytest.approx(ROUNDS * BASE_S)
    assert stay.variance == stay.third == 0.0


def test_quantile_and_chance_are_inverse_and_that_of_a_gamma() -> None:
    # Cumulants of an exponential distribution of mean one.
    exponential = Cumulants(1.0, 1.0, 2.0)
    assert exponential.quantile(0.95) == pytest.approx(-np.log(0.05), rel=1e-9)
    for one in (exponential, Cumulants(5.0, 4.0, 0.0), exponential.scaled(3.0)):
        assert one.below(one.quantile(0.9)) == pytest.approx(0.9)
