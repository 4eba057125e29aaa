"""The law of memory: its quantiles, and what runs teach it."""

from __future__ import annotations

import math

import pytest

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.memory_law import MemoryLaw, MemoryOutcome, Outcome, learned_law

LAW = MemoryLaw(allocator=1.06, activations=1.2, transients=1.5, shared_sigma=0.067, own_sigma=0.051, origin="a test")
GB = 1e9


def told(outcome: Outcome, *, predicted: float, measured: float) -> MemoryOutcome:
    return MemoryOutcome(outcome, predicted * GB, measured * GB)


@pytest.mark.parametrize("risk", [0.001, 0.05, 0.4, 0.5])
def test_what_is_the_margin_below_the_limit_exceeds_it_with_that_chance(risk: float) -> None:
    usable = 80.0 * GB
    assert LAW.chance_to_exceed(usable / LAW.margin(risk), usable) == pytest.approx(risk)


def test_a_law_without_spread_knows() -> None:
    sure = MemoryLaw(allocator=1.0, activations=1.0, transients=1.0, shared_sigma=0.0, own_sigma=0.0, origin="a test")
    assert sure.margin(0.05) == 1.0
    assert (sure.chance_to_exceed(80.1, 80.0), sure.chance_to_exceed(79.9, 80.0)) == (1.0, 0.0)


def test_one_measured_peak_narrows_the_margin_to_what_runs_of_a_cluster_differ_by() -> None:
    learned = learned_law(LAW, [told(Outcome.PEAK, predicted=60, measured=66)], origin="one run")
    assert LAW.margin(0.05) == pytest.approx(1.15, abs=0.005)
    assert 1.09 < learned.margin(0.05) < 1.12
    assert learned.scale == pytest.approx(1.1 ** (LAW.shared_sigma**2 / LAW.log_sigma**2), abs=0.01)
    assert (learned.origin, learned.own_sigma) == ("one run", LAW.own_sigma)
    many = learned_law(LAW, [told(Outcome.PEAK, predicted=60, measured=66)] * 50, origin="many")
    assert many.margin(0.05) == pytest.approx(math.exp(1.645 * LAW.own_sigma), abs=0.003)
    assert many.scale == pytest.approx(1.1, abs=0.01)


def test_peaks_teach_by_normal_regression() -> None:
    """The posterior of a normal mean, in closed form."""
    excesses = [0.02, 0.05, 0.08]
    runs = [told(Outcome.PEAK, predicted=60, measured=60 * math.exp(excess)) for excess in excesses]
    learned = learned_law(LAW, runs, origin="three runs")
    precision = 1 / LAW.shared_sigma**2 + 3 / LAW.own_sigma**2
    assert math.log(learned.scale) == pytest.approx(sum(excesses) / LAW.own_sigma**2 / precision, rel=1e-3)
    assert learned.shared_sigma == pytest.approx(precision**-0.5, rel=1e-2)


def test_runs_that_ran_out_teach_as_much_as_they_surprise() -> None:
    foreseen = learned_law(LAW, [told(Outcome.RAN_OUT, predicted=120, measured=80)], origin="a run")
    surprising = learned_law(LAW, [told(Outcome.RAN_OUT, predicted=70, measured=80)], origin="a run")
    assert foreseen.scale == pytest.approx(1.0, abs=1e-4)
    assert foreseen.shared_sigma == pytest.approx(LAW.shared_sigma, rel=1e-3)
    assert surprising.scale > 1.1
    assert surprising.chance_to_exceed(70 * GB * surprising.scale, 80 * GB) > 0.3
    fitted = learned_law(LAW, [told(Outcome.FITTED, predicted=90, measured=80)], origin="a run")
    assert fitted.scale < 0.92


def test_a_run_far_beyond_any_expectation_still_gives_a_law() -> None:
    learned = learned_law(LAW, [told(Outcome.RAN_OUT, predicted=1, measured=80)], origin="a run")
    assert math.isfinite(learned.scale)
    assert learned.scale > 10


def test_no_run_teaches_nothing() -> None:
    assert learned_law(LAW, [], origin="none") is LAW


@pytest.mark.parametrize("measured", [0.0, -1.0, math.inf, math.nan])
def test_memory_of_a_run_is_positive(measured: float) -> None:
    with pytest.raises(WorkloadError, match="memory of a run must be positive"):
        MemoryOutcome(Outcome.PEAK, 1.0, measured)
