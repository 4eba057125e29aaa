"""Bands of whole steps are fitted to sources that the fit had not seen, and hold what they say."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.held_out.leave_one_out import banded
from benchmarks.held_out.step_errors import HeldOutStep, fit_step_errors, step_errors_without
from meshwright.solver.training.report.bands import StepTraits

PLAIN = StepTraits(small=0.0, communication=0.0, experts=0.0)
MIXTURE = StepTraits(small=0.0, communication=0.0, experts=1.0)


def steps(spread: Callable[[str, StepTraits], float], *, sources: int = 12, rows: int = 60) -> list[HeldOutStep]:
    """Steps of sources whose errors have the given spread, half of them of models with experts."""
    chance = random.Random(5)
    return [
        HeldOutStep(f"source {n}", chance.gauss(0.0, spread(f"source {n}", traits)), traits)
        for n in range(sources)
        for row in range(rows)
        for traits in (MIXTURE if row % 2 else PLAIN,)
    ]


def by_experts(source: str, traits: StepTraits) -> float:
    return 0.05 + 0.3 * traits.experts


def test_a_band_holds_nine_of_ten_steps_and_more_of_sources_that_it_has_not_seen() -> None:
    found = banded(steps(by_experts), "made up")
    assert 0.9 < found.coverage < 0.99
    assert found.least(20)[1] > 0.75
    low, high = found.model.factors(PLAIN)
    wider_low, wider_high = found.model.factors(MIXTURE)
    assert wider_low < low < 1 < high < wider_high


def test_a_source_that_is_left_out_does_not_change_its_own_band() -> None:
    others = steps(lambda source, traits: 0.05)
    own = [HeldOutStep("own", 3.0 * (-1) ** n, PLAIN) for n in range(20)]
    without = step_errors_without(others + own, basis="made up")["own"]
    assert without.factors(PLAIN) == fit_step_errors(others, basis="made up").factors(PLAIN)
    assert banded(others + own, "made up").covered["own"] == (20, 0)


def test_one_large_source_does_not_decide() -> None:
    few = steps(lambda source, traits: 0.2, sources=10, rows=20)
    many = [HeldOutStep("large", 0.001 * (-1) ** n, PLAIN) for n in range(5_000)]
    low, high = fit_step_errors(few + many, basis="made up").factors(PLAIN)
    assert high > 1.2 and low < 1 / 1.2


def test_a_trait_that_tells_of_unseen_steps_is_taken_and_others_are_not() -> None:
    told = fit_step_errors(steps(by_experts), basis="made up")
    assert told.experts > 0.1 and told.small < 0.01 and told.communication < 0.01
    small = [replace(step, traits=replace(step.traits, small=step.traits.experts, experts=0.0)) for step in steps(by_experts)]
    assert fit_step_errors(small, basis="made up").small > 0.1


def test_chips_of_no_run_have_their_share_of_the_scale_whatever_else_is_taken() -> None:
    def by_chip(source: str, _: StepTraits) -> float:
        return 0.3 if source in {"source 1", "source 2"} else 0.05

    found = steps(by_chip)
    told = fit_step_errors(
        [replace(step, traits=replace(step.traits, chip=float(step.source in {"source 1", "source 2"}))) for step in found],
        basis="made up",
    )
    assert told.chip > 0.1 and told.experts < 0.02


def test_a_band_is_wider_the_fewer_sources_it_was_fitted_to() -> None:
    """One more source of six surprises more than one more of thirty."""
    few, many = (fit_step_errors(steps(lambda *_: 0.1, sources=n), basis="made up") for n in (6, 30))
    assert few.below + few.above > many.below + many.above


def test_kernels_that_were_not_measured_come_on_top() -> None:
    model = fit_step_errors(steps(lambda source, traits: 0.1), basis="made up")
    low, high = model.factors(PLAIN)
    wider_low, wider_high = model.factors(PLAIN, kernels=0.5)
    assert wider_low < low and wider_high > high
    assert math.log(wider_high) < math.log(high) + math.log(1.5)


def test_errors_of_kernels_that_were_not_measured_are_counted_once() -> None:
    """The part of a step that they explain widens no band of steps that have none, and what they leave does."""
    own = steps(lambda source, traits: 0.1)
    plain, kernels = ([replace(step, kernels=given) for step in own] for given in (0.0, 0.05))
    measured, unmeasured = (fit_step_errors(given, basis="made up") for given in (plain, kernels))
    assert unmeasured.below + unmeasured.above < measured.below + measured.above
    # Bands with these errors on top hold the same steps as bands that know of none.
    for with_kernels, without in zip(unmeasured.factors(PLAIN, kernels=0.05), measured.factors(PLAIN), strict=True):
        assert math.log(with_kernels) == pytest.approx(math.log(without), rel=0.05)
    explained = fit_step_errors([replace(step, kernels=9.0) for step in own], basis="made up")
    assert (explained.below, explained.above) == (0.0, 0.0)
