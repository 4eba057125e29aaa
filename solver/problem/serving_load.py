"""The requests of a serving workload: their arrivals and their lengths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from annotated_types import Interval, Len

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.units import STRICT_RECORD, Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt


@dataclass(frozen=True, slots=True)
class PoissonArrivals:
    """Requests arrive as a Poisson process of ``requests_per_s``."""

    __pydantic_config__ = STRICT_RECORD

    process: Literal["poisson"]
    requests_per_s: PositiveFloat


@dataclass(frozen=True, slots=True)
class GammaArrivals:
    """Requests arrive at ``requests_per_s``, gaps gamma-distributed with coefficient of variation ``cv``: above 1 in bursts."""

    __pydantic_config__ = STRICT_RECORD

    process: Literal["gamma"]
    requests_per_s: PositiveFloat
    cv: Annotated[float, Interval(ge=0.05, le=20.0)]


@dataclass(frozen=True, slots=True)
class TraceArrivals:
    """Requests arrive as recorded: when each came, in seconds, and its lengths in tokens, in order of time; ``cached_tokens``
    of each prompt were in the prefix cache, where they are given."""

    __pydantic_config__ = STRICT_RECORD

    process: Literal["trace"]
    times_s: Annotated[tuple[NonNegativeFloat, ...], Len(2)]
    prompt_tokens: tuple[PositiveInt, ...]
    output_tokens: tuple[PositiveInt, ...]
    cached_tokens: tuple[NonNegativeInt, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(self.times_s), len(self.prompt_tokens), len(self.output_tokens)}
        if len(lengths) > 1:
            raise WorkloadError(
                "a trace needs a time, a prompt and an output of each request",
                given=f"{len(self.times_s)} times, {len(self.prompt_tokens)} prompts, {len(self.output_tokens)} outputs",
                allowed="equally many",
            )
        if self.cached_tokens and len(self.cached_tokens) not in lengths:
            given = f"{len(self.cached_tokens)} of {len(self.times_s)} requests"
            raise WorkloadError("a trace needs cached tokens of each request or of none", given=given)
        if any(cached > prompt for cached, prompt in zip(self.cached_tokens, self.prompt_tokens, strict=False)):
            raise WorkloadError("a request of the trace has more cached tokens than its prompt has")
        late = next((i for i in range(1, len(self.times_s)) if self.times_s[i] < self.times_s[i - 1]), None)
        if late is not None:
            raise WorkloadError("the times of a trace must not fall", given=f"times_s[{late}] = {self.times_s[late]}")
        if self.times_s[0] == self.times_s[-1]:
            raise WorkloadError("all requests of the trace come at once", given=self.times_s[0], remedy="give times in seconds")

    @property
    def requests_per_s(self) -> float:
        """Mean arrival rate."""
        return (len(self.times_s) - 1) / (self.times_s[-1] - self.times_s[0])


@dataclass(frozen=True, slots=True)
class RateInterval:
    """So many ``seconds`` in which requests arrive at one rate, which may be 0."""

    __pydantic_config__ = STRICT_RECORD

    seconds: PositiveFloat
    requests_per_s: NonNegativeFloat


@dataclass(frozen=True, slots=True)
class ScheduleArrivals:
    """The rate of requests changes over a day, say: in each of the ``intervals`` they arrive as a Poisson process of its own.

    Targets are to be kept in each interval by itself, as in one that lasts. So a plan is one for the busiest interval: in each
    other a smaller load is seen by the same workers.
    """

    __pydantic_config__ = STRICT_RECORD

    process: Literal["schedule"]
    intervals: Annotated[tuple[RateInterval, ...], Len(1)]

    def __post_init__(self) -> None:
        if self.requests_per_s == 0.0:
            raise WorkloadError("no requests arrive in any interval of the schedule", given=0.0, allowed="one rate above 0")

    @property
    def requests_per_s(self) -> float:
        """The rate of the busiest interval."""
        return max(interval.requests_per_s for interval in self.intervals)

    def at(self, requests_per_s: float) -> ScheduleArrivals:
        """The schedule with this rate in its busiest interval, all others in proportion."""
        factor = requests_per_s / self.requests_per_s
        scaled = [replace(interval, requests_per_s=interval.requests_per_s * factor) for interval in self.intervals]
        return replace(self, intervals=tuple(scaled))


@dataclass(frozen=True, slots=True)
class ClosedArrivals:
    """``concurrency`` clients, each of which sends its next request when the last is answered, as benchmarks do.

    With ``requests_per_client`` figures are of one run: all clients begin at once, each sends so many requests, and all count,
    those of the opening burst too. Without, they are of clients that have long been at it.
    """

    __pydantic_config__ = STRICT_RECORD

    process: Literal["closed"]
    concurrency: PositiveInt
    requests_per_client: PositiveInt | None = None


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Every request has the same number of tokens."""

    __pydantic_config__ = STRICT_RECORD

    fixed: PositiveInt


@dataclass(frozen=True, slots=True)
class LognormalLength:
    """Token counts follow a lognormal distribution with this mean and 95th percentile."""

    __pydantic_config__ = STRICT_RECORD

    mean: PositiveFloat
    p95: PositiveFloat

    def __post_init__(self) -> None:
        # A lognormal with mean M has its 95th percentile between M and M exp(z^2/2), z = 1.645.
        if not self.mean < self.p95 <= self.mean * 3.868:
            raise WorkloadError(
                "no lognormal distribution has this mean and 95th percentile",
                given={"mean": self.mean, "p95": self.p95},
                allowed="mean < p95 <= 3.868 x mean",
            )


@dataclass(frozen=True, slots=True)
class EmpiricalLength:
    """Token counts as they were seen, each equally likely."""

    __pydantic_config__ = STRICT_RECORD

    empirical: Annotated[tuple[PositiveInt, ...], Len(1)]


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """The tokens that requests find in the prefix cache, each by itself.

    system_tokens   first tokens of every prompt, the same for all: always in the cache, and there once
    hit_ratio       share of requests that find more of their prompt
    hit_tokens      how much they find, from the start of the prompt; at most all of it
    """

    __pydantic_config__ = STRICT_RECORD

    system_tokens: NonNegativeInt = 0
    hit_ratio: Fraction = 0.0
    hit_tokens: FixedLength | LognormalLength | EmpiricalLength | None = None

    def __post_init__(self) -> None:
        if (self.hit_ratio > 0.0) != (self.hit_tokens is not None):
            raise WorkloadError(
                "hits of a prefix cache need a share of requests and a length",
                given={"hit_ratio": self.hit_ratio, "hit_tokens": self.hit_tokens},
                allowed="both, or neither",
            )
