"""The memory of a run over what is counted of it: medians, and a lognormal spread around them.

What is counted, tensor by tensor, is never all: allocators hold more than tensors take, kernels have workspaces, frameworks
keep copies that nobody wrote down. Medians correct that, linear in what is counted, so that a search stays exact. The spread
has two parts: a shift that all runs of one framework on one cluster share, of which measured peaks tell, and what one run has
of its own, which no other tells. Both are those of sources that the medians have not seen.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import NormalDist, fmean
from typing import Annotated

from annotated_types import Ge, Gt, Le

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.shared_error import Bound, learned_error
from meshwright.costmodels.units import STRICT_RECORD

_STANDARD = NormalDist()

Factor = Annotated[float, Gt(0.0), Le(10.0)]
Spread = Annotated[float, Ge(0.0), Le(2.0)]
DEFAULT_RISK = 0.05
"""The chance that a plan may run out of memory, where a request names none: of twenty plans one."""

LEAST_CHANCE = 1e-9
"""Chances below are told as none: no run that was measured says anything of them."""

MAX_RISK = 0.5
"""Beyond it a plan would be expected to run out of memory; at it the median decides."""

Risk = Annotated[float, Gt(0.0), Le(MAX_RISK)]


@dataclass(frozen=True, slots=True)
class MemoryLaw:
    """The memory of a device over what is counted of it.

    allocator      what the allocator holds over what tensors take, median
    activations    what kept activations take over what is counted, median
    transients     the same of what lives only while a layer or the loss runs
    scale          the whole of a device over what the factors above say, median: 1 until runs of one's own tell
    shared_sigma   spread (natural logarithm) of a shift that all runs of a framework on a cluster share
    own_sigma      spread of what each run has of its own
    origin         which runs say so
    """

    __pydantic_config__ = STRICT_RECORD

    allocator: Factor
    activations: Factor
    transients: Factor
    shared_sigma: Spread
    own_sigma: Spread
    origin: str
    scale: Factor = 1.0

    @property
    def log_sigma(self) -> float:
        """Spread of a run of which nothing was measured yet."""
        return math.hypot(self.shared_sigma, self.own_sigma)

    def margin(self, risk: float) -> float:
        """Return how many times the median the memory is that a run exceeds with a chance of ``risk``."""
        return math.exp(-_STANDARD.inv_cdf(risk) * self.log_sigma)

    def device_bytes(self, counted_bytes: float, *, overhead_bytes: float) -> float:
        """Return the median memory of a device whose tensors take so much, activations and transients with their factors."""
        return self.scale * (self.allocator * counted_bytes + overhead_bytes)

    def counted_bytes(self, usable_bytes: float, *, overhead_bytes: float, risk: float) -> float:
        """Return the most that tensors may take, so that a device exceeds what is usable with a chance of ``risk`` alone."""
        return (usable_bytes / (self.scale * self.margin(risk)) - overhead_bytes) / self.allocator

    def chance_to_exceed(self, median_bytes: float, usable_bytes: float) -> float:
        """Return the chance that a run of this median memory takes more than there is."""
        if median_bytes <= 0.0 or usable_bytes <= 0.0:
            return 0.0 if median_bytes <= usable_bytes else 1.0
        excess = math.log(median_bytes / usable_bytes)
        if self.log_sigma == 0.0:
            return float(excess > 0.0)
        chance = 0.5 * math.erfc(-excess / (self.log_sigma * math.sqrt(2.0)))
        return chance if chance >= LEAST_CHANCE else 0.0


class MemoryEvidence(StrEnum):
    """The evidence that a run gives about its memory."""

    PEAK = "peak"
    """The memory that its fullest device took."""
    FITTED = "fitted"
    """It took no more than there was."""
    RAN_OUT = "ran-out"
    """It would have taken more than there was."""


@dataclass(frozen=True, slots=True)
class MemoryOutcome:
    """The memory of a run beside what the law said of it, whose ``scale`` must be that of the law that is to learn.

    median_bytes   predicted for the device that the outcome is of
    told_bytes     its peak, or what it had
    """

    outcome: MemoryEvidence
    median_bytes: float
    told_bytes: float

    def __post_init__(self) -> None:
        if not (0.0 < self.median_bytes < math.inf and 0.0 < self.told_bytes < math.inf):
            raise WorkloadError(
                "memory of a run must be positive",
                given={"predicted": self.median_bytes, "measured": self.told_bytes},
                allowed="finite bytes above 0",
            )


GENERIC_LAW = MemoryLaw(
    allocator=1.039,
    activations=1.045,
    transients=1.086,
    shared_sigma=0.04,
    own_sigma=0.089,
    origin="1040 runs of 11 sources",
)
"""The law of a framework of which no run is known: benchmarks/fit_memory.py fits it to runs of all that are."""


OWN_SCATTER = 0.65
"""Spread of the logarithm of ``own_sigma`` from source to source: of 12 sources and devices with eight peaks or more, less what
their number leaves uncertain (docs/decisions-accuracy.md)."""


def learned_law(law: MemoryLaw, outcomes: Sequence[MemoryOutcome], *, origin: str, scatter: float = OWN_SCATTER) -> MemoryLaw:
    """Return the law after runs of the same framework on the same cluster.

    Peaks tell the shared shift and how far runs scatter around it; runs that are only known to have fitted or run out tell one
    side (`costmodels.shared_error`). Runs of one plan, known by its predicted memory, count as one.
    """
    if not outcomes:
        return law
    seen: dict[float, list[float]] = defaultdict(list)
    bounds: dict[Bound, None] = {}
    for each in outcomes:
        excess = math.log(each.told_bytes / each.median_bytes)
        if each.outcome is MemoryEvidence.PEAK:
            seen[each.median_bytes].append(excess)
        else:
            bounds[Bound(excess, above=each.outcome is MemoryEvidence.RAN_OUT)] = None
    told = learned_error(
        law.shared_sigma, law.own_sigma, scatter=scatter, seen=list(map(fmean, seen.values())), bounds=tuple(bounds)
    )
    scale = law.scale * math.exp(told.shift)
    return replace(law, scale=scale, shared_sigma=told.shared_sigma, own_sigma=told.own_sigma, origin=origin)
