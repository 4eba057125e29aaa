"""What a serving replica is asked to do: token counts of requests, and how requests arrive."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from costmodels.errors import WorkloadError

LONGEST = 0.999
"""Quantile at which sampled lengths are cut; else the longest of a sample would decide what fits in memory."""

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Distribution of a token count: lognormal with this mean and log-scale ``sigma``; sigma 0 is a fixed count.

    Counts are whole, at least one, and cut at LONGEST: engines refuse what is longer.
    """

    mean: float
    sigma: float = 0.0

    def __post_init__(self) -> None:
        if not self.mean >= 1.0 or not 0.0 <= self.sigma < math.inf or math.isinf(self.mean):
            raise WorkloadError(
                "impossible distribution of token counts",
                given={"mean": self.mean, "sigma": self.sigma},
                allowed="mean >= 1, sigma >= 0, both finite",
            )

    def quantile(self, probability: float | FloatArray) -> FloatArray:
        """Token count that the share ``probability`` of requests does not exceed."""
        mu = math.log(self.mean) - self.sigma**2 / 2
        return np.asarray(np.maximum(1.0, np.rint(np.exp(mu + self.sigma * ndtri(probability)))), dtype=np.float64)

    def sample(self, uniform: FloatArray) -> IntArray:
        """Token counts of requests whose position in the distribution is ``uniform`` (0 to 1, exclusive)."""
        if self.sigma == 0.0:
            return np.full(uniform.shape, round(self.mean), dtype=np.int64)
        return self.quantile(np.minimum(uniform, LONGEST)).astype(np.int64)

    @property
    def second_moment(self) -> float:
        """Mean of the squared count: mean^2 exp(sigma^2) for a lognormal."""
        return self.mean**2 * math.exp(self.sigma**2)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of a replica: Poisson arrivals at a rate, prompt and output token counts independent of one another."""

    requests_per_s: float
    prompt: TokenCount
    output: TokenCount

    def __post_init__(self) -> None:
        if not 0.0 < self.requests_per_s < math.inf:
            raise WorkloadError("arrival rate must be positive and finite", given=self.requests_per_s)


@dataclass(frozen=True, eq=False)
class RequestStream:
    """Requests in order of arrival: times in seconds from zero, prompt and output tokens."""

    arrival_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray

    def __len__(self) -> int:
        return len(self.arrival_s)


def poisson_stream(load: Load, *, requests: int, seed: int) -> RequestStream:
    """Requests of a Poisson process. Under one seed, another rate only stretches time: the same requests, the same order
    (common random numbers, so that comparisons of rates and layouts are not blurred by chance)."""
    generator = np.random.Generator(np.random.PCG64(seed))
    gaps = generator.exponential(1.0, requests)
    prompts, outputs = generator.random((2, requests))
    return RequestStream(
        arrival_s=np.cumsum(gaps) / load.requests_per_s,
        prompt_tokens=load.prompt.sample(_open(prompts)),
        output_tokens=load.output.sample(_open(outputs)),
    )


def _open(uniform: FloatArray) -> FloatArray:
    """Numbers of [0, 1) moved into (0, 1), where quantiles are finite."""
    return np.maximum(uniform, np.finfo(np.float64).tiny)
