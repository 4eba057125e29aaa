"""Shared errors and scatters from runs: against sums over fine grids, and the laws that any answer must keep."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from meshwright.costmodels.shared_error import OWN_NODES, OWN_REACH, QUANTILE, Bound, _log_cdf, _scatters, learned_error

SHARED, OWN = 0.06, 0.09
Z = NormalDist().inv_cdf(QUANTILE)

TOLD = {
    "one": ([0.05], []),
    "several": ([0.05, -0.02, 0.11, 0.04], []),
    "ran out": ([], [Bound(0.1, above=True)]),
    "both": ([0.02, 0.03], [Bound(0.05, above=True), Bound(0.3, above=False), Bound(-0.01, above=True)]),
}


def drawn(seen: list[float], bounds: list[Bound], scatter: float) -> tuple[float, float]:
    """Mean shift, and the quantile of the next run over it, by drawing shifts and scatters and weighing them with what was
    told."""
    random, n = np.random.default_rng(11), 40_000
    owns, log_chances = np.array(_scatters(SHARED, OWN, scatter)).T
    chances = np.exp(log_chances)
    own = random.choice(owns, n, p=chances / chances.sum())
    shift = SHARED * random.standard_normal(n)
    log_weight = np.zeros(n)
    for error in seen:
        log_weight -= 0.5 * ((error - shift) / own) ** 2 + np.log(own)
    for each in bounds:
        sides = (each.error - shift) / own * (-1.0 if each.above else 1.0)
        log_weight += np.array([_log_cdf(side) for side in sides])
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    mean = float(weight @ shift)
    following = shift + own * random.standard_normal(n)
    order = np.argsort(following)
    return mean, float(np.interp(QUANTILE, np.cumsum(weight[order]), following[order])) - mean


@pytest.mark.parametrize("scatter", [0.0, 0.65])
@pytest.mark.parametrize("name", TOLD)
def test_what_runs_tell_is_that_of_drawn_worlds(name: str, scatter: float) -> None:
    seen, bounds = TOLD[name]
    found = learned_error(SHARED, OWN, scatter=scatter, seen=seen, bounds=bounds)
    mean, above = drawn(seen, bounds, scatter)
    assert found.shift == pytest.approx(mean, abs=0.004)
    # Of runs with one side known the shift's chance is taken as normal for each scatter.
    assert Z * math.hypot(found.shared_sigma, found.own_sigma) == pytest.approx(above, rel=0.06)


@pytest.mark.parametrize("scatter", [0.3, 0.65, 0.83])
def test_before_any_run_the_quantile_is_that_of_the_law(scatter: float) -> None:
    found = learned_error(SHARED, OWN, scatter=scatter, seen=[])
    assert found.shift == pytest.approx(0.0, abs=1e-12)
    assert math.hypot(found.shared_sigma, found.own_sigma) == pytest.approx(math.hypot(SHARED, OWN), rel=1e-9)
    owns = [own for own, _ in _scatters(SHARED, OWN, scatter)]
    assert len(owns) == OWN_NODES and math.log(owns[-1] / owns[0]) == pytest.approx(2 * OWN_REACH * scatter)


def test_the_order_of_runs_does_not_matter_and_their_sign_mirrors() -> None:
    seen = [0.05, -0.02, 0.11]
    found = learned_error(SHARED, OWN, scatter=0.65, seen=seen)
    backwards = learned_error(SHARED, OWN, scatter=0.65, seen=seen[::-1])
    mirrored = learned_error(SHARED, OWN, scatter=0.65, seen=[-error for error in seen])
    assert backwards.shift == pytest.approx(found.shift, rel=1e-12)
    assert mirrored.shift == pytest.approx(-found.shift, rel=1e-12)


def test_a_law_without_spreads_stays_sure() -> None:
    found = learned_error(0.0, 0.0, scatter=0.65, seen=[0.1])
    assert math.hypot(found.shared_sigma, found.own_sigma) < 1e-5
