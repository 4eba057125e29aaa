"""Waiting time of an M/G/1 queue, whole distribution: Pollaczek-Khinchine, inverted with the fast Fourier transform."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costmodels.errors import WorkloadError

FloatArray = npt.NDArray[np.float64]

_POINTS = 8192
_HORIZON = 16.0
"""The grid ends where an exponential tail with the mean of the wait has fallen to exp(-16): beyond any percentile asked."""


@dataclass(frozen=True, eq=False)
class TimeDistribution:
    """A distribution of a time: ``probability[i]`` at ``i * step_s``; what is missing to one lies beyond the grid."""

    step_s: float
    probability: FloatArray

    def quantile(self, probability: float) -> float:
        """Time that is not exceeded with the given probability; infinite when it lies beyond the grid."""
        cumulative = np.cumsum(self.probability)
        i = int(np.searchsorted(cumulative, probability))
        return float(i * self.step_s) if i < len(cumulative) else float("inf")

    @property
    def mean_s(self) -> float:
        """Mean time."""
        return float(np.dot(self.probability, np.arange(len(self.probability))) * self.step_s)


def waiting_time(requests_per_s: float, service_s: FloatArray, extra: tuple[FloatArray, ...] = ()) -> TimeDistribution:
    """Wait of a customer of an M/G/1 queue, first come first served, plus independent ``extra`` times.

    ``service_s`` and each of ``extra`` are equally likely values. The wait is a geometric number of residual service times
    (Pollaczek-Khinchine; Kleinrock 1975, section 5.7). Raises WorkloadError when arrivals outrun the server.
    """
    mean_s = float(np.mean(service_s))
    utilisation = requests_per_s * mean_s
    if not utilisation < 1.0:
        raise WorkloadError("arrivals outrun the server", given=utilisation, allowed="utilisation below 1")
    residual_mean_s = float(np.mean(service_s**2)) / (2.0 * mean_s)
    wait_s = residual_mean_s / (1.0 - utilisation)
    horizon_s = _HORIZON * wait_s + 2.0 * float(np.max(service_s)) + sum(float(np.max(values)) for values in extra)
    step_s = horizon_s / _POINTS
    residual = np.fft.rfft(_residual(service_s, step_s))
    transform = (1.0 - utilisation) / (1.0 - utilisation * residual)
    for values in extra:
        transform = transform * np.fft.rfft(_histogram(values, step_s))
    probability = np.maximum(0.0, np.fft.irfft(transform, _POINTS))
    return TimeDistribution(step_s, probability)


def _histogram(values_s: FloatArray, step_s: float) -> FloatArray:
    """Equally likely values on the grid, each shared by its two neighbours so that the mean is kept."""
    position = values_s / step_s
    low = np.minimum(position.astype(np.int64), _POINTS - 2)
    fraction = position - low
    grid = np.bincount(low, 1.0 - fraction, _POINTS) + np.bincount(low + 1, fraction, _POINTS)
    return np.asarray(grid / len(values_s))


def _residual(service_s: FloatArray, step_s: float) -> FloatArray:
    """Distribution of the rest of a service that is under way: density P(S > t) / E[S], integrated around grid points."""
    edges = np.maximum(0.0, (np.arange(_POINTS + 1) - 0.5) * step_s)
    ordered = np.sort(service_s)
    # Integral of min(S, t) averaged over S is the integral of P(S > u) up to t.
    prefix = np.concatenate([[0.0], np.cumsum(ordered)])
    below = np.searchsorted(ordered, edges, side="right")
    integral = (prefix[below] + edges * (len(ordered) - below)) / len(ordered)
    return np.asarray(np.diff(integral) / np.mean(service_s))
