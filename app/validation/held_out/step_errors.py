"""The error model of whole steps, fitted to steps that were predicted without their source.

The scale is fitted first (of a Laplace distribution: far-off runs count by their size), each source by a power of its number of
steps. Its percentiles are those of steps whose source the scale had not seen: errors of a source are alike, so that a scale
that saw it would promise too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from meshwright.solver.training.report.whole_steps import StepErrorModel, StepTraits

Floats = NDArray[np.float64]
Chosen = NDArray[np.bool_]

PERCENTILES = (0.05, 0.975)
"""Percentiles of steps at the ends of the band. The upper one is a little outside of 95 %: sources to come differ more from
those that are known than these from one another, and steps take longer than predicted by more than they take less."""

RIDGE = 2e-4
"""Weight that keeps shares of the scale from running away where no step has their trait."""

START, LEAST, MOST = 0.02, 3e-4, 1.65


@dataclass(frozen=True, slots=True)
class HeldOutStep:
    """A step predicted without its source: logarithm of measured over predicted time, and what its band depends on."""

    source: str
    log_ratio: float
    traits: StepTraits
    kernels: float = 0.0


@dataclass(frozen=True)
class _Steps:
    """Steps as arrays: log ratios, traits [steps, 5], weights, source of each."""

    ratios: Floats
    traits: Floats
    weights: Floats
    sources: NDArray[np.str_]


def fit_step_errors(steps: Sequence[HeldOutStep], *, basis: str) -> StepErrorModel:
    """The error model of all steps."""
    arrays = _arrays(steps)
    return _fitted(arrays, np.ones(len(steps), np.bool_), basis)


def step_errors_without(steps: Sequence[HeldOutStep], *, basis: str) -> dict[str, StepErrorModel]:
    """For each source the error model of all other sources' steps."""
    arrays = _arrays(steps)
    return {source: _fitted(arrays, arrays.sources != source, basis) for source in dict.fromkeys(s.source for s in steps)}


def _arrays(steps: Sequence[HeldOutStep]) -> _Steps:
    sources = np.array([step.source for step in steps])
    _, place, count = np.unique(sources, return_inverse=True, return_counts=True)
    return _Steps(
        ratios=np.array([step.log_ratio for step in steps]),
        traits=np.array([[1.0, s.traits.small, s.traits.communication, s.traits.experts, s.traits.network] for s in steps]),
        weights=1.0 / count[place].astype(np.float64),
        sources=sources,
    )


def _fitted(steps: _Steps, chosen: Chosen, basis: str) -> StepErrorModel:
    scaled = np.zeros(len(steps.ratios))
    for source in dict.fromkeys(steps.sources[chosen].tolist()):
        own = steps.sources == source
        scaled[own] = steps.ratios[own] / (steps.traits[own] @ _shares(steps, chosen & ~own))
    below, above = (_percentile(scaled[chosen], steps.weights[chosen], share) for share in PERCENTILES)
    base, small, communication, experts, network = (float(share) for share in _shares(steps, chosen))
    return StepErrorModel(base, small, communication, experts, max(0.0, -below), max(0.0, above), basis, network)


def _shares(steps: _Steps, chosen: Chosen) -> Floats:
    """Shares of the scale by trait that make the chosen steps likeliest."""
    traits, sizes = steps.traits[chosen], np.abs(steps.ratios[chosen])
    weights = steps.weights[chosen] / steps.weights[chosen].sum()

    def cost(logarithms: Floats) -> tuple[float, Floats]:
        shares = np.exp(logarithms)
        scale = traits @ shares
        slope = traits.T @ (weights * (1 / scale - sizes / scale**2))
        value = float(weights @ (np.log(scale) + sizes / scale)) + RIDGE * float(logarithms @ logarithms)
        return value, shares * slope + 2 * RIDGE * logarithms

    start = np.full(traits.shape[1], np.log(START))
    bounds = [(np.log(LEAST), np.log(MOST))] * len(start)
    return np.asarray(np.exp(minimize(cost, start, jac=True, method="L-BFGS-B", bounds=bounds).x))


def _percentile(values: Floats, weights: Floats, share: float) -> float:
    order = np.argsort(values, kind="stable")
    passed = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][min(int(np.searchsorted(passed, share)), len(order) - 1)])
