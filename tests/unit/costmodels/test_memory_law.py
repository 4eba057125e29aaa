"""The law of memory: its quantiles, and what runs teach it."""

from __future__ import annotations

import math

import pytest

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.model.memory_law import MemoryEvidence, MemoryLaw, MemoryOutcome, learned_law

LAW = MemoryLaw(allocator=1.06, activations=1.2, transients=1.5, shared_sigma=0.067, own_sigma=0.051, origin="a test")
GB = 1e9


def told(outcome: MemoryEvidence, *, predicted: float, measured: float) -> MemoryOutcome:
    return MemoryOutcome(outcome, predicted * GB, measured * GB)


@pytest.mark.parametrize("risk", [0.001, 0.05, 0.4, 0.5])
def test_what_is_the_margin_below_the_limit_exceeds_it_with_that_chance(risk: float) -> None:
    usable = 80.0 * GB
    assert LAW.chance_to_exceed(usable / LAW.margin(risk), usable) == pytest.approx(risk)


def test_a_law_without_spread_knows() -> None:
    sure = MemoryLaw(allocator=1.0, activations=1.0, transients=1.0, shared_sigma=0.0, own_sigma=0.0, origin="a test")
    assert sure.margin(0.05) == 1.0
    assert (sure.chance_to_exceed(80.1, 80.0), sure.chance_to_exceed(79.9, 80.0)) == (1.0, 0.0)


def peaks(*excesses: float) -> list[MemoryOutcome]:
    """Peaks of as many plans, by how far they are from what was predicted."""
    sizes = (60 + place for place in range(len(excesses)))
    return [
        told(MemoryEvidence.PEAK, predicted=size, measured=size * math.exp(e)) for size, e in zip(sizes, excesses, strict=True)
    ]


def test_one_measured_peak_moves_the_median_and_narrows_the_margin() -> None:
    learned = learned_law(LAW, peaks(0.1), origin="one run")
    assert LAW.margin(0.05) == pytest.approx(1.15, abs=0.005)
    assert 1.08 < learned.margin(0.05) < 1.14
    assert 1.04 < learned.scale < 1.1
    assert learned.origin == "one run"


def test_plans_that_agree_narrow_the_margin_and_plans_that_do_not_widen_it() -> None:
    agree, scattered = (learned_law(LAW, peaks(*each), origin="") for each in ([0.10, 0.11, 0.09] * 2, [0.2, -0.1, 0.1] * 2))
    assert agree.margin(0.05) < 1.06 and agree.scale == pytest.approx(math.exp(0.1), abs=0.01)
    assert scattered.margin(0.05) > 1.2
    # Runs of one plan count as one of their mean.
    again = learned_law(LAW, peaks(0.1) * 50, origin="")
    assert again.margin(0.05) == learned_law(LAW, peaks(0.1), origin="").margin(0.05)


def test_peaks_teach_by_normal_regression_where_the_scatter_is_known() -> None:
    """The posterior of a normal mean, in closed form."""
    excesses = [0.02, 0.05, 0.08]
    learned = learned_law(LAW, peaks(*excesses), origin="three runs", scatter=0.0)
    precision = 1 / LAW.shared_sigma**2 + 3 / LAW.own_sigma**2
    assert math.log(learned.scale) == pytest.approx(sum(excesses) / LAW.own_sigma**2 / precision, rel=1e-9)
    assert learned.shared_sigma == pytest.approx(precision**-0.5, rel=1e-9)
    assert learned.own_sigma == pytest.approx(LAW.own_sigma, rel=1e-9)


def test_runs_that_ran_out_teach_as_much_as_they_surprise() -> None:
    foreseen = learned_law(LAW, [told(MemoryEvidence.RAN_OUT, predicted=120, measured=80)], origin="a run")
    surprising = learned_law(LAW, [told(MemoryEvidence.RAN_OUT, predicted=70, measured=80)], origin="a run")
    assert foreseen.scale == pytest.approx(1.0, abs=1e-4)
    assert foreseen.margin(0.05) == pytest.approx(LAW.margin(0.05), rel=2e-3)
    assert surprising.scale > 1.05
    assert surprising.chance_to_exceed(70 * GB * surprising.scale, 80 * GB) > 0.2
    fitted = learned_law(LAW, [told(MemoryEvidence.FITTED, predicted=90, measured=80)], origin="a run")
    assert fitted.scale < 0.97


@pytest.mark.parametrize("share", [0.95, 0.85, 0.8])
def test_a_plan_that_ran_out_is_not_what_fits_next_time(share: float) -> None:
    """At the default risk: also where the law had thought it safe, for who scatters so far may do so again."""
    assert LAW.chance_to_exceed(0.8 * 80, 80) < 0.01
    for others in ([], peaks(0.0), peaks(0.02, -0.01)):
        ran_out = told(MemoryEvidence.RAN_OUT, predicted=80 * share, measured=80)
        learned = learned_law(LAW, [*others, ran_out], origin="")
        assert learned.chance_to_exceed(80 * share * learned.scale, 80) > 0.05


def test_a_run_far_beyond_any_expectation_still_gives_a_law() -> None:
    learned = learned_law(LAW, [told(MemoryEvidence.RAN_OUT, predicted=1, measured=80)], origin="a run")
    assert math.isfinite(learned.scale) and learned.scale * learned.margin(0.05) > 1.5


def test_no_run_teaches_nothing() -> None:
    assert learned_law(LAW, [], origin="none") is LAW


@pytest.mark.parametrize("measured", [0.0, -1.0, math.inf, math.nan])
def test_memory_of_a_run_is_positive(measured: float) -> None:
    with pytest.raises(WorkloadError, match="memory of a run must be positive"):
        MemoryOutcome(MemoryEvidence.PEAK, 1.0, measured)
