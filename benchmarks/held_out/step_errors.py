"""The error model of whole steps, fitted to steps that were predicted without their source.

The scale is fitted first (of a Laplace distribution: far-off runs count by their size), each source alike. Its traits are
chosen by the likelihood of steps whose source the scale had not seen, and its percentiles are those of the same steps: errors
of a source are alike, so that a scale that saw it would promise too much. A step counts there by how many scales a band must
have to hold it, as bands are printed: with the error of kernels that were not measured on the device beside the scale. Where a
source is left out, all of this is done without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from meshwright.solver.training.report.bands import StepErrorModel, StepTraits

Floats = NDArray[np.float64]
Chosen = NDArray[np.bool_]

HELD = 0.9
"""Share of the steps of a source to come that a band is to hold."""

STEPS_OF_SOURCE = 60
"""Steps of a source that the scale is fitted to: since every source counts alike, more would only take longer."""

ALWAYS = (0, 4, 5)
CHOICES = tuple(tuple(sorted((*ALWAYS, *more))) for more in ((), (3,), (1, 3), (1, 2, 3)))
"""Traits that a scale may have: always those that say what nobody measured, a network or the rates of a chip; and with them
none, experts, small layers beside them, and all. Each choice has one more than the one before."""

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


def fit_step_errors(steps: Sequence[HeldOutStep], *, basis: str) -> StepErrorModel:
    """The error model of all steps, which have at least two sources."""
    return _Steps.of(steps).model((), basis)


def step_errors_without(steps: Sequence[HeldOutStep], *, basis: str) -> dict[str, StepErrorModel]:
    """For each source the error model of all other sources' steps; there are at least three."""
    arrays = _Steps.of(steps)
    return {source: arrays.model((source,), basis) for source in arrays.names}


@dataclass(frozen=True)
class _Steps:
    """Steps as arrays: log ratios, log ratios beyond what kernels that were not measured explain, traits [steps, 6], weights,
    source of each; and shares of the scale that were found, by the columns of traits and the sources left out."""

    ratios: Floats
    unexplained: Floats
    traits: Floats
    weights: Floats
    sources: NDArray[np.str_]
    found: dict[tuple[tuple[int, ...], frozenset[str]], Floats] = field(default_factory=dict)

    @staticmethod
    def of(steps: Sequence[HeldOutStep]) -> _Steps:
        """At most `STEPS_OF_SOURCE` steps of each source, evenly spaced."""
        by_source: dict[str, list[HeldOutStep]] = {}
        for step in steps:
            by_source.setdefault(step.source, []).append(step)
        taken = [step for own in by_source.values() for step in own[:: -(-len(own) // STEPS_OF_SOURCE)]]
        sources = np.array([step.source for step in taken])
        _, place, count = np.unique(sources, return_inverse=True, return_counts=True)
        ratios, kernels = np.array([(step.log_ratio, np.log1p(step.kernels)) for step in taken]).T
        return _Steps(
            ratios=ratios,
            unexplained=np.copysign(np.sqrt(np.maximum(0.0, ratios**2 - kernels**2)), ratios),
            traits=np.array([_traits(step.traits) for step in taken]),
            weights=1.0 / count[place].astype(np.float64),
            sources=sources,
        )

    @property
    def names(self) -> list[str]:
        """Sources, in order of their first step."""
        return list(dict.fromkeys(self.sources.tolist()))

    def model(self, left_out: tuple[str, ...], basis: str) -> StepErrorModel:
        """The error model of steps of other sources: with the traits by which each of these is likeliest that the scale has not
        seen, and with percentiles of the same steps.

        Of as many sources as there are, one more is held with the wanted share if the percentiles hold (n + 1) / n of it
        (conformal prediction: Vovk et al. 2005; over groups Lee, Barber and Willett 2023).
        """
        choices = dict.fromkeys(self._told(each) for each in CHOICES)
        columns = min(choices, key=lambda each: self._surprise(each, left_out))
        chosen = ~np.isin(self.sources, left_out)
        n_sources = len(self.names) - len(left_out)
        outside = max(0.0, 1.0 - HELD * (n_sources + 1) / n_sources) / 2
        scaled = np.zeros(len(self.ratios))
        for own, scale in self._unseen(columns, left_out):
            scaled[own] = self.unexplained[own] / scale
        weights = self.weights[chosen]
        below, above = (_percentile(scaled[chosen], weights, share) for share in (outside, 1.0 - outside))
        shares = np.zeros(self.traits.shape[1])
        shares[list(columns)] = self._shares(columns, frozenset(left_out))
        base, small, communication, experts, network, chip = (float(share) for share in shares)
        return StepErrorModel(base, small, communication, experts, max(0.0, -below), max(0.0, above), basis, network, chip)

    def _told(self, columns: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the traits that some step has: of others nothing is told."""
        return tuple(column for column in columns if self.traits[:, column].any())

    def _surprise(self, columns: tuple[int, ...], left_out: tuple[str, ...]) -> float:
        """Mean over sources of minus the log likelihood of their steps, by scales that have not seen them."""
        found = [
            float(np.mean(np.log(scale) + np.abs(self.ratios[own]) / scale)) for own, scale in self._unseen(columns, left_out)
        ]
        return sum(found) / len(found)

    def _unseen(self, columns: tuple[int, ...], left_out: tuple[str, ...]) -> Iterator[tuple[Chosen, Floats]]:
        """Steps of each source that is not left out, and their scale without it."""
        for source in self.names:
            if source not in left_out:
                own = self.sources == source
                yield own, self.traits[own][:, list(columns)] @ self._shares(columns, frozenset((*left_out, source)))

    def _shares(self, columns: tuple[int, ...], left_out: frozenset[str]) -> Floats:
        if (columns, left_out) not in self.found:
            chosen = ~np.isin(self.sources, list(left_out))
            weights = self.weights[chosen] / self.weights[chosen].sum()
            self.found[columns, left_out] = _likeliest(self.traits[chosen][:, list(columns)], self.ratios[chosen], weights)
        return self.found[columns, left_out]


def _traits(traits: StepTraits) -> tuple[float, ...]:
    return 1.0, traits.small, traits.communication, traits.experts, traits.network, traits.chip


def _likeliest(traits: Floats, ratios: Floats, weights: Floats) -> Floats:
    """Shares of the scale by trait that make the steps likeliest."""
    sizes = np.abs(ratios)

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
