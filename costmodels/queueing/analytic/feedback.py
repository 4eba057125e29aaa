"""The feedback of arrivals: they slow an engine down, which lets more arrivals gather. A linear self-exciting process in
rounds.

A round lasts base + what each sequence present adds + what each new prompt adds, and a request stays a number of rounds: so
requests that arrive bring others, as in a Hawkes process (Hawkes 1971; as a branching process, Hawkes and Oakes 1974). The
cumulants of anything that adds up over requests follow from a recursion over the clusters, from the last round backwards
(Jovanovic, Hertz and Rotter 2015).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammainc, gammaincinv, ndtr, ndtri

from meshwright.costmodels.compiling import kept_compiled

FloatArray = npt.NDArray[np.float64]

CELLS_OF_A_STAY = 16
"""Parts of a mean stay that the recursion goes through one by one."""

_SYMMETRIC = 1e-3
"""Skewness below which a distribution counts as normal."""


class Feedback(NamedTuple):
    """A linear engine: rounds last ``base_s`` and, of a sequence in its i-th round, ``sequence_s + i growth_s``.

    prompt_s         mean, mean square and mean cube of what a prompt adds to a round
    rounds           [k] equally likely rounds of requests
    arrivals_per_s   rate of a Poisson process
    """

    base_s: float
    sequence_s: float
    growth_s: float
    prompt_s: tuple[float, float, float]
    rounds: FloatArray
    arrivals_per_s: float


class Cumulants(NamedTuple):
    """Mean, variance and third central moment."""

    mean: float
    variance: float
    third: float

    def scaled(self, factor: float) -> Cumulants:
        """Those of the quantity times a factor."""
        return Cumulants(self.mean * factor, self.variance * factor**2, self.third * factor**3)

    def below(self, value: float) -> float:
        """Chance of less than a value, by the shifted gamma distribution of these cumulants (Pearson's type III)."""
        deviation = math.sqrt(max(self.variance, 1e-300))
        skewness = self.third / deviation**3
        z = (value - self.mean) / deviation
        if skewness < _SYMMETRIC:
            return float(ndtr(z))
        shape = 4.0 / skewness**2
        return float(gammainc(shape, max(0.0, shape + z * math.sqrt(shape))))

    def quantile(self, probability: float) -> float:
        """Value that is not exceeded with a probability, by the same distribution."""
        deviation = math.sqrt(max(self.variance, 1e-300))
        skewness = self.third / deviation**3
        if skewness < _SYMMETRIC:
            return self.mean + deviation * float(ndtri(probability))
        shape = 4.0 / skewness**2
        return self.mean + deviation * (float(gammaincinv(shape, probability)) - shape) / math.sqrt(shape)


def stay_s(feedback: Feedback, rounds: float) -> Cumulants:
    """Time that a request of so many rounds takes for them, from its first token on."""
    return Cumulants(*_cumulants(feedback, rounds, _cells(feedback)))


def present(feedback: Feedback) -> Cumulants:
    """Sequences that decode in a round."""
    return Cumulants(*_cumulants(feedback, 0.0, _cells(feedback)))


def _cells(feedback: Feedback) -> int:
    """Cells before the moment asked about that can matter: the longest stay, and clusters until they have died out."""
    mean = float(np.mean(feedback.rounds))
    each_s = feedback.sequence_s + feedback.growth_s * mean / 2.0
    free = max(0.05, 1.0 - feedback.arrivals_per_s * feedback.prompt_s[0])
    brings = min(0.95, feedback.arrivals_per_s * mean * each_s / free)
    return int(CELLS_OF_A_STAY * (float(feedback.rounds.max()) / mean + 3.0 / (1.0 - brings)))


@kept_compiled
def _cumulants(feedback, asked, before):  # type: ignore[no-untyped-def]
    """Cumulants of the time of the next ``asked`` rounds for who is there, or of who is present where ``asked`` is 0.

    ``effect[k]`` are the cluster's first three moments, about zero, of what an arrival in cell k adds with all it brings. By
    the branching property the log of its generating function is what it adds itself, and of each cell after it a Poisson
    number of arrivals; the derivatives of that at zero are these moments.
    """
    rate, rounds = feedback.arrivals_per_s, feedback.rounds
    prompt_s, prompt_square, prompt_cube = feedback.prompt_s
    mean = 0.0
    for k in range(len(rounds)):
        mean += rounds[k]
    width = mean / len(rounds) / CELLS_OF_A_STAY
    after = math.ceil(asked / width)
    size = before + after + 1
    # Sums from a cell to the end of the three moments, plain and times the round, for integrals over a stay.
    sums = np.zeros((3, 2, size + 2))
    effects = np.zeros(3)
    total = np.zeros(3)
    stays = np.zeros(3)
    free = 1.0 - rate * prompt_s
    for cell in range(size - 1, -1, -1):
        at = (cell - before) * width
        first = square = cube = second = product = third = 0.0
        own = np.zeros(3)
        asks = cell == before and asked > 0.0
        for k in range(len(rounds) + (1 if asks else 0)):
            stay = rounds[k] if k < len(rounds) else asked
            ahead = stay / width
            end = min(size, cell + 1 + int(ahead))
            part = ahead - int(ahead) if end < size else 0.0
            for moment in range(3):
                plain = sums[moment, 0, cell + 1] - sums[moment, 0, end]
                moved = sums[moment, 1, cell + 1] - sums[moment, 1, end]
                if part > 0.0:
                    plain += part * (sums[moment, 0, end] - sums[moment, 0, end + 1])
                    moved += part * (sums[moment, 1, end] - sums[moment, 1, end + 1])
                stays[moment] = feedback.sequence_s * plain + feedback.growth_s * (moved - at * plain)
            if asked == 0.0 and stay > -at:
                stays[0] += 1.0
            if k < len(rounds):
                share = 1.0 / len(rounds)
                first += share * stays[0]
                square += share * stays[0] ** 2
                cube += share * stays[0] ** 3
                second += share * stays[1]
                product += share * stays[0] * stays[1]
                third += share * stays[2]
            else:
                for moment in range(3):
                    own[moment] = stays[moment]
        counts = min(1.0, max(0.0, (asked - at) / width)) if at >= 0.0 else 0.0
        effects[0] = (first + prompt_s * counts) / free
        direct = counts + rate * effects[0]
        effects[1] = (second + square + 2.0 * first * prompt_s * direct + prompt_square * direct**2) / free
        mixed = product + prompt_s * direct * second + rate * effects[1] * (prompt_s * first + prompt_square * direct)
        cubes = cube + 3.0 * square * prompt_s * direct + 3.0 * first * prompt_square * direct**2 + prompt_cube * direct**3
        effects[2] = (third + 3.0 * mixed + cubes) / free
        if asks:
            # Who arrives with its own prompt counts; its time does not, since the first token ends it.
            for moment in range(3):
                total[moment] += own[moment]
                total[moment] += prompt_s * rate * effects[moment]
        for moment in range(3):
            weight = rate * effects[moment] + (counts if moment == 0 else 0.0)
            sums[moment, 0, cell] = sums[moment, 0, cell + 1] + width * weight
            sums[moment, 1, cell] = sums[moment, 1, cell + 1] + width * weight * at
            total[moment] += rate * feedback.base_s * width * effects[moment]
    return total[0] + asked * feedback.base_s, total[1], total[2]
