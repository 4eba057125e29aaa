"""The load of a serving replica: token counts of requests, and how requests arrive."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.queueing.results import FloatArray, Percentile, percentile, share_error

LONGEST = 0.999
"""Quantile at which sampled lengths are cut; else the longest of a sample would decide what fits in memory."""

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Distribution of a token count: lognormal with this mean and log-scale ``sigma``; sigma 0 is a fixed count; with
    ``values``, ascending and equally likely, exactly those (see ``empirical``).

    Counts are whole, at least one; lognormal ones are cut at LONGEST: engines refuse what is longer.
    """

    mean: float
    sigma: float = 0.0
    values: tuple[int, ...] = ()

    @classmethod
    def empirical(cls, values: Iterable[int]) -> TokenCount:
        """Counts as they were seen, each equally likely."""
        ordered = tuple(sorted(int(value) for value in values))
        if not ordered or ordered[0] < 1:
            raise WorkloadError("token counts must be positive", given=ordered[:1], allowed="one count or more, each from 1")
        return cls(math.fsum(ordered) / len(ordered), 0.0, ordered)

    @property
    def is_fixed(self) -> bool:
        """True if every request has the same count."""
        return self.values[0] == self.values[-1] if self.values else self.sigma == 0.0

    def __post_init__(self) -> None:
        if not self.mean >= 1.0 or not 0.0 <= self.sigma < math.inf or math.isinf(self.mean):
            raise WorkloadError(
                "impossible distribution of token counts",
                given={"mean": self.mean, "sigma": self.sigma},
                allowed="mean >= 1, sigma >= 0, both finite",
            )

    def quantile(self, probability: float | FloatArray) -> FloatArray:
        """Token count that the share ``probability`` of requests does not exceed."""
        if self.values:
            rank = np.ceil(np.asarray(probability) * len(self.values) - 1e-9).astype(np.int64) - 1
            return np.asarray(np.asarray(self.values)[np.clip(rank, 0, len(self.values) - 1)], dtype=np.float64)
        mu = math.log(self.mean) - self.sigma**2 / 2
        return np.asarray(np.maximum(1.0, np.rint(np.exp(mu + self.sigma * ndtri(probability)))), dtype=np.float64)

    def sample(self, uniform: FloatArray) -> IntArray:
        """Token counts of requests whose position in the distribution is ``uniform`` (0 to 1, exclusive)."""
        if self.values:
            return self.quantile(uniform).astype(np.int64)
        if self.sigma == 0.0:
            return np.full(uniform.shape, round(self.mean), dtype=np.int64)
        return self.quantile(np.minimum(uniform, LONGEST)).astype(np.int64)

    @property
    def second_moment(self) -> float:
        """Mean of the squared count: mean^2 exp(sigma^2) for a lognormal."""
        if self.values:
            return math.fsum(value * value for value in self.values) / len(self.values)
        return self.mean**2 * math.exp(self.sigma**2)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of a replica: arrivals at a rate, prompt and output token counts independent of one another.

    cv             coefficient of variation of the time between arrivals: 1 for a Poisson process, more for bursts
    cached_share   share of each prompt whose keys and values the prefix cache already holds
    shared_tokens  first tokens of a mean prompt that all prompts have in common, in the cache once
    """

    requests_per_s: float
    prompt: TokenCount
    output: TokenCount
    cv: float = 1.0
    cached_share: float = 0.0
    shared_tokens: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.requests_per_s < math.inf:
            raise WorkloadError("arrival rate must be positive and finite", given=self.requests_per_s)
        if not 0.0 < self.cv < math.inf:
            raise WorkloadError("coefficient of variation must be positive and finite", given=self.cv)
        if not 0.0 <= self.cached_share <= 1.0:
            raise WorkloadError(
                "share of prompts in the prefix cache is out of range", given=self.cached_share, allowed="0 to 1"
            )


@dataclass(frozen=True, eq=False)
class RequestStream:
    """Requests in order of arrival: times in seconds from zero, prompt and output tokens.

    ``cached_tokens`` of each prompt are in the cache before it starts; engines compute at least the last token. The first
    ``shared_tokens`` of them are the same for all and lie in the cache once. ``rounds`` of decoding give a request its tokens
    after the first; each gives one where they are None. A stream that ``is_finite``, a recorded trace or a run of so many
    requests, is asked about from its first request to its last; any other is a piece of a load that goes on.
    """

    arrival_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    cached_tokens: IntArray | None = None
    rounds: IntArray | None = None
    shared_tokens: int = 0
    is_finite: bool = False

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __getitem__(self, part: slice | IntArray) -> RequestStream:
        """Some of the requests."""
        cached = None if self.cached_tokens is None else self.cached_tokens[part]
        rounds = None if self.rounds is None else self.rounds[part]
        arrival_s, prompts, outputs = self.arrival_s[part], self.prompt_tokens[part], self.output_tokens[part]
        return RequestStream(arrival_s, prompts, outputs, cached, rounds, self.shared_tokens, self.is_finite)

    @property
    def shared(self) -> IntArray:
        """Tokens of each prompt that lie in the cache once for all: at least its last one is computed by itself."""
        common = np.minimum(self.shared_tokens, self.prompt_tokens - 1)
        return common if self.cached_tokens is None else np.minimum(common, self.cached_tokens)

    @property
    def cache_tokens(self) -> int:
        """Tokens of the cache that the longest request needs, shared ones included."""
        return int((self.prompt_tokens + self.output_tokens - self.shared).max()) + self.shared_tokens

    def faster(self, factor: float) -> RequestStream:
        """The same requests, that many times as fast after one another."""
        return replace(self, arrival_s=self.arrival_s / factor)


def request_stream(load: Load, *, requests: int, seed: int, split: int = 1) -> RequestStream:
    """Requests of a renewal process with gamma-distributed gaps, or those of one of ``split`` replicas that share such a
    process at random and evenly; the load's rate is that of the replica.

    Under one seed, another rate only stretches time: the same requests, the same order (common random numbers, so that
    comparisons of rates and layouts are not blurred by chance).
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    gaps = _gaps(generator, load.cv, requests=requests, split=split)
    prompts, outputs = generator.random((2, requests))
    prompt_tokens = load.prompt.sample(_open(prompts))
    return RequestStream(
        arrival_s=np.cumsum(gaps) / load.requests_per_s,
        prompt_tokens=prompt_tokens,
        output_tokens=load.output.sample(_open(outputs)),
        cached_tokens=cached_tokens(prompt_tokens, load.cached_share),
    )


def in_turn(load: Load, replicas: int) -> Load:
    """The load of one of so many replicas that take the requests of a renewal process round robin: each gets every n-th, so
    that its gaps are sums of n (of a Poisson process: Erlang-n). ``load`` has the replica's rate and the process's ``cv``."""
    return replace(load, cv=load.cv / math.sqrt(replicas))


def poisson_stream(load: Load, *, requests: int, seed: int) -> RequestStream:
    """Requests of a Poisson process; see ``request_stream``."""
    return request_stream(replace(load, cv=1.0), requests=requests, seed=seed)


def cached_tokens(prompt_tokens: IntArray, share: float) -> IntArray | None:
    """Tokens of each prompt in the prefix cache; None for none."""
    return None if share == 0.0 else np.floor(prompt_tokens * share).astype(np.int64)


def _gaps(generator: np.random.Generator, cv: float, *, requests: int, split: int) -> FloatArray:
    """Gaps between arrivals, one on average. Of a process shared by ``split`` replicas at random, one replica sees sums of
    a geometric number of gaps; for cv 1 that is a Poisson process again."""
    if cv == 1.0:
        return generator.exponential(1.0, requests)
    shape = cv**-2
    merged = generator.geometric(1.0 / split, requests) if split > 1 else 1
    return np.asarray(generator.gamma(shape * merged, 1.0 / (shape * split), requests))


def _open(uniform: FloatArray) -> FloatArray:
    """Numbers of [0, 1) moved into (0, 1), where quantiles are finite."""
    return np.maximum(uniform, np.finfo(np.float64).tiny)


# Percentiles of requests that several simulations stand for, each for its share of them.


@dataclass(frozen=True, eq=False)
class WeightedObservations:
    """Observations of one simulation in order of time, and the share of all that they stand for."""

    share: float
    observations: FloatArray


def mixture_percentile(parts: Sequence[WeightedObservations], probability: float) -> Percentile:
    """Percentile of a mixture: the least value that the parts' shares of it, weighted, do not exceed.

    The error of "does not exceed" is the weighted sum of the parts' errors: simulations under one seed draw the same requests,
    so that errors may all go one way, and no correlation makes more of them. The interval thus covers at least as often as
    each part's own. Shares need not sum to 1: they are taken relative to their sum. Raises ValueError for no
    observations.
    """
    seen = [part for part in parts if part.share > 0.0 and len(part.observations)]
    if not seen:
        raise ValueError("a mixture needs observations")
    if len(seen) == 1:
        return percentile(seen[0].observations, probability)
    total = math.fsum(part.share for part in seen)
    values = np.concatenate([part.observations for part in seen])
    weights = np.concatenate([np.full(len(p.observations), p.share / total / len(p.observations)) for p in seen])
    order = np.argsort(values, kind="stable")
    values, reached = values[order], np.cumsum(weights[order])
    value = _quantile(values, reached, probability)
    half = math.fsum(part.share / total * share_error(part.observations, value) for part in seen)
    if math.isinf(half):
        return Percentile(value, -math.inf, math.inf)
    return Percentile(value, _quantile(values, reached, probability - half), _quantile(values, reached, probability + half))


def mixture_mean(parts: Sequence[WeightedObservations]) -> float:
    """Mean of a mixture."""
    seen = [part for part in parts if part.share > 0.0 and len(part.observations)]
    total = math.fsum(part.share for part in seen)
    return math.fsum(part.share / total * float(np.mean(part.observations)) for part in seen)


def _quantile(values: FloatArray, reached: FloatArray, probability: float) -> float:
    """The smallest of ordered values at which so much weight is reached; the last where all of it is not enough."""
    return float(values[min(len(values) - 1, int(np.searchsorted(reached, probability - 1e-12)))])
