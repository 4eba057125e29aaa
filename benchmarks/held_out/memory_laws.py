"""The laws of memory fitted to measured runs, and for each source the law that has not seen it.

By maximum likelihood: runs with a peak by regression of its logarithm, runs that are only known to have fitted or run out by
their chance to do so (Tobit's model), both with Student's t in place of the normal distribution, so that a few runs that
their tables describe wrongly do not decide. Runs of one source are no independent evidence, and count as `WEIGHT`. The law of a
profile is fitted with that of all runs as prior; the allocator's share is that of all runs, since few profiles tell it.

The spreads that a law states are not those of its fit, which has seen its runs, but those of peaks around laws that have not
seen their source: of sources around the law what runs of a cluster share, of runs around their source what each has of its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import stdtr, stdtrit

from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.app.evidence.training.prediction import costed_run
from meshwright.app.evidence.training.rows import RunStatus, ValidationRun
from meshwright.app.evidence.training.stated import MemoryCount, MemoryRank
from meshwright.costmodels.model.memory_law import DEFAULT_RISK, MemoryLaw

Floats = NDArray[np.float64]

WEIGHT = 1.0
"""Independent runs that a source counts as: what its runs share spreads three times as far as what each has of its own."""

TAIL = 4.0
"""Degrees of freedom of Student's t, the usual choice of robust regression (Lange, Little and Taylor 1989)."""


AS_NORMAL = float(stdtrit(TAIL, 1.0 - DEFAULT_RISK)) / NormalDist().inv_cdf(1.0 - DEFAULT_RISK)
"""Spread of the normal distribution over that of Student's t, where both exceed the same at the default risk."""

START = tuple(math.log(value) for value in (1.05, 1.05, 1.1, 0.1))
"""Logarithms of what is expected before any run: the allocator's share, factors of activations and transients, the spread."""

FREE, NARROW = (0.1, 0.25, 0.5, 1.0), (1e-6, 0.1, 0.2, 0.25)
"""Spreads of the priors of these logarithms: of all sources, and of one profile."""

FEWEST_SOURCES = 2
"""Sources with peaks that tell how far a source may be from a law that has not seen it."""


@dataclass(frozen=True)
class ToldMemory:
    """A run and what it told of its memory.

    stages         [stages, 4] bytes of state, activations, transients and overhead, without any law's factors
    count, rank    the memory that its source reports
    device_bytes   what it has
    peak_bytes     what it took; None where it ran out, or nothing is known but that it fitted
    """

    source: str
    profile: str
    model: str
    stages: Floats
    count: MemoryCount
    rank: MemoryRank
    device_bytes: float
    peak_bytes: float | None
    ran_out: bool


def told_memory(runs: Sequence[ValidationRun]) -> list[ToldMemory]:
    """Every predicted run with a peak, and every one of sources that say what ran out of memory. Sources that the mapping does
    not have say nothing of a profile."""
    known = [run for run in runs if not run.run.reading.is_assumed]
    labelled = {run.run.source for run in known if run.outcome.status is not RunStatus.OK}
    found = []
    for run in known:
        if run.outcome.peak_memory_gb is None and run.run.source not in labelled:
            continue
        try:
            found.append(_told(run))
        except NotPredictedError:
            continue
    return found


def _told(run: ValidationRun) -> ToldMemory:
    # Plans that would have been recomputed to fit are taken as they stand: their label is what is fitted.
    costed = costed_run(replace(run.run, recompute=run.run.recompute or "none"))
    reading, peak = run.run.reading, run.outcome.peak_memory_gb
    law = costed.cost.stages[0].law
    stages = [
        (
            stage.static_bytes,
            stage.activation_bytes / law.activations,
            stage.transient_bytes / law.transients,
            stage.overhead_bytes,
        )
        for stage in costed.cost.stages
    ]
    return ToldMemory(
        source=run.run.source,
        profile=reading.implementation.profile or "",
        model=run.run.model,
        stages=np.array(stages),
        count=reading.memory_count,
        rank=reading.memory_rank,
        device_bytes=min(stage.usable_bytes for stage in costed.cost.stages),
        peak_bytes=peak * reading.memory_unit_bytes if peak and run.outcome.status is RunStatus.OK else None,
        ran_out=run.outcome.status is not RunStatus.OK,
    )


@dataclass(frozen=True)
class FittedLaws:
    """The law of all runs, which is that of a profile without any, and those of profiles by name."""

    of_all: MemoryLaw
    of_profiles: Mapping[str, MemoryLaw]

    def of(self, profile: str) -> MemoryLaw:
        """The law of a profile."""
        return self.of_profiles.get(profile, self.of_all)


def fitted_laws(runs: Sequence[ToldMemory]) -> FittedLaws:
    """The laws of one run or more, all with the spreads of sources that were left out: no profile has sources enough to tell
    its own."""
    of_all = _likeliest(runs)
    shared, own = _left_out_spreads(runs) or (AS_NORMAL * of_all.shared_sigma, 0.0)

    def stated(law: MemoryLaw, told_by: Sequence[ToldMemory]) -> MemoryLaw:
        n_sources = len({run.source for run in told_by})
        origin = f"{len(told_by)} runs of {'one source' if n_sources == 1 else f'{n_sources} sources'}"
        return replace(law, shared_sigma=shared, own_sigma=own, origin=origin)

    by_profile = sorted(grouped(runs, lambda run: run.profile).items())
    return FittedLaws(stated(of_all, runs), {name: stated(_likeliest(own, of_all), own) for name, own in by_profile})


def laws_without(runs: Sequence[ToldMemory]) -> dict[str, MemoryLaw]:
    """For each source the law of its framework's profile that has not seen it: of the profile's other runs, or where there are
    none of all other runs."""
    return {
        source: fitted_laws([run for run in runs if run.source != source]).of(own[0].profile)
        for source, own in grouped(runs, lambda run: run.source).items()
    }


def _left_out_spreads(runs: Sequence[ToldMemory]) -> tuple[float, float] | None:
    """Spreads of what runs of a source share and of what each has of its own, around laws that have not seen the source; None
    where too few sources tell.

    A one-way analysis of variance, each source alike: the mean square of peaks around the law, and around their source's mean.
    """
    whole, own = [], []
    for source, members in grouped(runs, lambda run: run.source).items():
        with_peak = [run for run in members if run.peak_bytes is not None]
        others = [run for run in runs if run.source != source]
        if not with_peak or not others:
            continue
        of_profile = [run for run in others if run.profile == members[0].profile]
        law = _likeliest(others)
        told = _Told.of(with_peak)
        away = told.log_peak - told.log_shown(_likeliest(of_profile, law) if of_profile else law)
        whole.append(float(np.mean(away**2)))
        own += [float(np.var(away, ddof=1))] if len(away) > 1 else []
    if len(whole) < FEWEST_SOURCES or not own:
        return None
    of_both, of_runs = float(np.mean(whole)), min(float(np.mean(own)), float(np.mean(whole)))
    return math.sqrt(of_both - of_runs), math.sqrt(of_runs)


def _likeliest(runs: Sequence[ToldMemory], prior: MemoryLaw | None = None) -> MemoryLaw:
    """The factors that are likeliest; ``shared_sigma`` is the whole spread of Student's t around them."""
    expected = START if prior is None else _logarithms(prior)
    spreads = FREE if prior is None else NARROW
    told = _Told.of(runs)

    def loss(x: Floats) -> float:
        away = 0.5 * sum(((value - mean) / spread) ** 2 for value, mean, spread in zip(x, expected, spreads, strict=True))
        return float(away - told.log_likelihood(_law(x)))

    solved = minimize(loss, np.array(expected), method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-4, "maxiter": 1000})
    return _law(solved.x)


def log_memory(runs: Sequence[ToldMemory], law: MemoryLaw) -> Floats:
    """Logarithm of the median memory of each run's fullest device."""
    return _Told.of(runs).log_whole(law)


def grouped(runs: Sequence[ToldMemory], key: Callable[[ToldMemory], str]) -> Mapping[str, list[ToldMemory]]:
    """Runs by a key of theirs."""
    found: dict[str, list[ToldMemory]] = defaultdict(list)
    for run in runs:
        found[key(run)].append(run)
    return found


@dataclass(frozen=True)
class _Told:
    """Runs as arrays: stages of all of them one after the other, where each begins, and what each told."""

    stages: Floats
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    reserved: NDArray[np.bool_]
    whole: NDArray[np.bool_]
    ranks: NDArray[np.str_]
    log_room: Floats
    log_peak: Floats
    ran_out: NDArray[np.bool_]
    weights: Floats

    @staticmethod
    def of(runs: Sequence[ToldMemory]) -> _Told:
        lengths = np.array([len(run.stages) for run in runs])
        ends = np.cumsum(lengths)
        sizes = {source: len(members) for source, members in grouped(runs, lambda run: run.source).items()}
        of_stage = np.repeat(np.arange(len(runs)), lengths)
        reserved = np.array([run.count is not MemoryCount.ALLOCATED for run in runs])
        whole = np.array([run.count is MemoryCount.PROCESS for run in runs])
        return _Told(
            stages=np.concatenate([run.stages for run in runs]),
            first=ends - lengths,
            last=ends - 1,
            reserved=reserved[of_stage],
            whole=whole[of_stage],
            ranks=np.array([run.rank.value for run in runs]),
            log_room=np.log([run.device_bytes for run in runs]),
            log_peak=np.array([math.nan if run.peak_bytes is None else math.log(run.peak_bytes) for run in runs]),
            ran_out=np.array([run.ran_out for run in runs]),
            weights=np.array([min(1.0, WEIGHT / sizes[run.source]) for run in runs]),
        )

    def log_shown(self, law: MemoryLaw) -> Floats:
        """Logarithm of the median memory of each run, as its source reports it."""
        taken = self._tensors(law) * np.where(self.reserved, law.allocator, 1.0) + np.where(self.whole, self.stages[:, 3], 0.0)
        mean = np.add.reduceat(taken, self.first) / (self.last - self.first + 1)
        shown = np.maximum.reduceat(taken, self.first)
        for rank, values in (
            (MemoryRank.FIRST_STAGE, taken[self.first]),
            (MemoryRank.LAST_STAGE, taken[self.last]),
            (MemoryRank.MEAN, mean),
        ):
            shown = np.where(self.ranks == rank.value, values, shown)
        return np.asarray(np.log(shown))

    def log_whole(self, law: MemoryLaw) -> Floats:
        """Logarithm of the median memory of each run's fullest device."""
        taken = law.allocator * self._tensors(law) + self.stages[:, 3]
        return np.asarray(np.log(np.maximum.reduceat(taken, self.first)))

    def log_likelihood(self, law: MemoryLaw) -> float:
        """Logarithm of the chance of what runs told, weighted; ``shared_sigma`` is the whole spread of Student's t."""
        sigma = law.shared_sigma
        away = (self.log_peak - self.log_shown(law)) / sigma
        room = (self.log_room - self.log_whole(law)) / sigma
        label = np.log(stdtr(TAIL, np.where(self.ran_out, -room, room)))
        peak = -0.5 * (TAIL + 1.0) * np.log1p(away**2 / TAIL) - math.log(sigma)
        return float(self.weights @ np.where(np.isnan(away), label, peak))

    def _tensors(self, law: MemoryLaw) -> Floats:
        return np.asarray(self.stages[:, :3] @ np.array([1.0, law.activations, law.transients]))


def _law(logarithms: Floats) -> MemoryLaw:
    allocator, activations, transients, sigma = (float(value) for value in np.exp(logarithms))
    return MemoryLaw(allocator, activations, transients, sigma, 0.0, "")


def _logarithms(law: MemoryLaw) -> tuple[float, ...]:
    return tuple(math.log(value) for value in (law.allocator, law.activations, law.transients, law.log_sigma))
