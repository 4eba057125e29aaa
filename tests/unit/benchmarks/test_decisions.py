"""The law of unmeasured steps that ships is the one that the page of decisions prints, and the fit is the one it describes."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.decisions_coverage import LAW_OF_ALL, law_cells, scatter_factor, times_without
from benchmarks.decisions_serving_rules import fitted_own, noise_words
from meshwright.costmodels.calibration.from_runs import DEFAULT_CONFIDENCE, UNMEASURED_TIME
from meshwright.costmodels.fitting.calibration import OWN_SCATTER, fitted_time, learned_time
from meshwright.solver.serving import planning as equals

DOCS = Path(__file__).parents[3] / "docs"


def words(name: str) -> str:
    """A page on one line."""
    return " ".join((DOCS / name).read_text(encoding="utf-8").split())


def test_the_law_that_ships_is_that_of_the_page() -> None:
    page = (DOCS / "decisions-accuracy.md").read_text(encoding="utf-8")
    assert law_cells(LAW_OF_ALL, UNMEASURED_TIME) in page
    assert f"{scatter_factor(OWN_SCATTER)} of times" in page


def test_the_noise_of_serving_that_ships_is_that_of_the_page() -> None:
    pairs, deployments = (int(number.replace(",", "")) for number in re.findall(r"[0-9][0-9,]*", equals.BASIS))
    assert noise_words(equals.OWN_SPREAD, pairs, deployments) in (DOCS / "decisions-serving.md").read_text(encoding="utf-8")


def test_the_noise_of_serving_is_the_mean_distance_of_pairs() -> None:
    draw = np.random.Generator(np.random.PCG64(3))
    own = [draw.laplace(0.0, 0.1, (400, 2)) for _ in range(20)]
    told = fitted_own([(each[:, 0] - each[:, 1]).tolist() for each in own])
    # Of two Laplace errors the mean distance is 3/2 of that of one, whose spread is the root of 2 times it.
    assert told == pytest.approx(0.15, rel=0.05)
    assert fitted_own([[0.1, -0.3], [0.4]]) == pytest.approx(0.3)


def test_pages_name_the_factors_of_the_law_that_ships() -> None:
    after_one = learned_time(UNMEASURED_TIME, {"as predicted": [0.0]})
    before, after = (law.factor(DEFAULT_CONFIDENCE) for law in (UNMEASURED_TIME, after_one))
    assert f"that is {before:.2f} at 0.9, of all frameworks and clusters; after one run on the cluster {after:.2f}" in words(
        "training.md"
    )
    spreads = f"spread is {UNMEASURED_TIME.shared_sigma:g} for what all runs"
    assert spreads in words("calibration.md") and f"and {UNMEASURED_TIME.own_sigma:g} for what each" in words("calibration.md")


def test_the_fit_finds_what_runs_were_made_with() -> None:
    draw = np.random.Generator(np.random.PCG64(2))
    shared, own = 0.25, 0.12
    clusters = [(shift + draw.normal(0.0, own, 60)).tolist() for shift in draw.normal(0.0, shared, 80)]
    law = fitted_time(clusters)
    assert law.scale == 1.0 and law.runs == 0
    assert law.shared_sigma == pytest.approx(shared, rel=0.15) and law.own_sigma == pytest.approx(own, rel=0.1)
    # A cluster counts once, however many runs it has, and one run says nothing of the spread inside a cluster.
    more = fitted_time([clusters[0] * 50, *clusters[1:], []])
    assert (more.shared_sigma, more.own_sigma) == pytest.approx((law.shared_sigma, law.own_sigma))
    assert fitted_time([[0.3], [-0.3]]).own_sigma == 0.0
    assert fitted_time([[0.3], [-0.3]]).shared_sigma == pytest.approx(0.3)


def test_a_source_is_not_in_the_law_that_it_is_judged_by() -> None:
    clusters = [("one", [0.1, 0.2]), ("other", [-0.1, 0.1]), ("far", [2.0, 3.0]), ("far", [2.5, 2.6])]
    law = times_without("far", clusters)
    assert law == fitted_time(ratios for source, ratios in clusters if source != "far")
    assert law.factor(0.9) < math.exp(0.5) < fitted_time(ratios for _, ratios in clusters).factor(0.9)
