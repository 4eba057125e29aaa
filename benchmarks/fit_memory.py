"""Fits the laws of memory of implementation profiles to measured training runs, and scores them on sources left out.

Run from the root of the repository: python benchmarks/fit_memory.py [paths of measured tables]

Of a law it fits the factors of activations and transients and the spread, by maximum likelihood: runs with a peak by normal
regression of its logarithm, runs that are only known to have fitted or run out by probit (Tobit's model). Runs of one source
are no independent evidence: they weigh as much as ten. Profiles are fitted with the law of all sources as prior.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist, median

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_ndtr

from meshwright.app.validation.prediction import costed_run
from meshwright.app.validation.rows import MeasuredRun, RunStatus, read_measured_runs
from meshwright.app.validation.sources import UNKNOWN, MemoryCount, MemoryRank, sources_of
from meshwright.app.validation.unpredicted import NotPredictedError
from meshwright.costmodels.model.memory_law import MemoryLaw

TABLES = (Path("../shared/data/training/measured.csv"), Path("../shared/data/training/newer.csv"))
SOURCES = Path("benchmarks/measured.sources.yaml")
WEIGHT = 10.0
"""Independent runs that a source counts as at most."""

START = (math.log(1.05), math.log(1.1), math.log(0.1))
FREE, NARROW = (0.25, 0.5, 1.0), (0.1, 0.2, 0.25)
"""Spreads of the priors of the logarithms of both factors and of the spread: of all sources, and of one profile."""

LABELLED = 100
"""Labels from which a source is scored by itself."""

RISKS = (0.5, 0.2, 0.1, 0.05)
MIN_PEAKS = 5
LARGE_BYTES = 8e9
"""Peaks from which a run tells the spread of runs of one model: below, workspaces that nobody counts are a tenth of all."""


@dataclass(frozen=True)
class Told:
    """A run: bytes of state, activations, transients and overhead by stage, what it has, and what it told."""

    source: str
    profile: str
    model: str
    stages: NDArray[np.float64]
    count: MemoryCount
    rank: MemoryRank
    device_bytes: float
    peak_bytes: float | None
    ran_out: bool
    allocator: float

    def log_memory(self, activations: float, transients: float, *, whole: bool) -> float:
        """Logarithm of the median memory: as its source reports it, or of the whole of the fullest device."""
        taken = self.stages[:, :3] @ np.array([1.0, activations, transients])
        if whole or self.count is not MemoryCount.ALLOCATED:
            taken = self.allocator * taken
        if whole or self.count is MemoryCount.PROCESS:
            taken = taken + self.stages[:, 3]
        shown = {MemoryRank.FIRST_STAGE: taken[0], MemoryRank.LAST_STAGE: taken[-1], MemoryRank.MEAN: taken.mean()}
        return math.log(taken.max() if whole else shown.get(self.rank, taken.max()))


def told_runs(paths: Sequence[Path]) -> list[Told]:
    """Every predicted run with a peak, and every one of sources that say what ran out of memory. Sources that the mapping does
    not have say nothing of a profile."""
    runs = [run for path in paths for run in read_measured_runs(path, sources_of(path, SOURCES))]
    runs = [run for run in runs if run.run.reading is not UNKNOWN]
    labelled = {run.run.source for run in runs if run.outcome.status is not RunStatus.OK}
    found = []
    for run in runs:
        if run.outcome.peak_memory_gb is None and run.run.source not in labelled:
            continue
        try:
            found.append(_told(run))
        except NotPredictedError:
            continue
    return found


def _told(run: MeasuredRun) -> Told:
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
    return Told(
        source=run.run.source,
        profile=reading.implementation.profile or "",
        model=run.run.model,
        stages=np.array(stages),
        count=reading.memory_count,
        rank=reading.memory_rank,
        device_bytes=min(stage.usable_bytes for stage in costed.cost.stages),
        peak_bytes=peak * reading.memory_unit_bytes if peak and run.outcome.status is RunStatus.OK else None,
        ran_out=run.outcome.status is not RunStatus.OK,
        allocator=law.allocator,
    )


def fitted(runs: Sequence[Told], prior: Sequence[float], spreads: Sequence[float]) -> tuple[float, float, float]:
    """Factors of activations and transients, and the spread, that are likeliest."""
    by_source = grouped(runs, lambda run: run.source)

    def loss(x: NDArray[np.float64]) -> float:
        activations, transients, sigma = np.exp(x)
        found = 0.5 * sum(((value - mean) / spread) ** 2 for value, mean, spread in zip(x, prior, spreads, strict=True))
        for members in by_source.values():
            weight = min(1.0, WEIGHT / len(members))
            found -= weight * sum(log_likelihood(run, activations, transients, sigma) for run in members)
        return float(found)

    solved = minimize(loss, np.array(prior), method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-2, "maxiter": 400})
    activations, transients, sigma = np.exp(solved.x)
    return float(activations), float(transients), float(sigma)


def log_likelihood(run: Told, activations: float, transients: float, sigma: float) -> float:
    """Logarithm of the chance of what a run told."""
    if run.peak_bytes is not None:
        away = (math.log(run.peak_bytes) - run.log_memory(activations, transients, whole=False)) / sigma
        return -0.5 * away * away - math.log(sigma)
    room = (math.log(run.device_bytes) - run.log_memory(activations, transients, whole=True)) / sigma
    return float(log_ndtr(-room if run.ran_out else room))


def grouped(runs: Sequence[Told], key: object) -> Mapping[str, list[Told]]:
    """Runs by a key of theirs."""
    found: dict[str, list[Told]] = defaultdict(list)
    for run in runs:
        found[key(run)].append(run)  # type: ignore[operator]
    return found


def own_spread(runs: Sequence[Told], activations: float, transients: float) -> float | None:
    """Spread of runs of one model in one source around their median, by the median of distances; None for too few."""
    away: list[float] = []
    for members in grouped(runs, lambda run: f"{run.source}|{run.model}").values():
        errors = [
            math.log(run.peak_bytes) - run.log_memory(activations, transients, whole=False)
            for run in members
            if run.peak_bytes is not None and run.peak_bytes > LARGE_BYTES
        ]
        if len(errors) > 1:
            away += [abs(error - median(errors)) for error in errors]
    return median(away) / NormalDist().inv_cdf(0.75) if len(away) >= MIN_PEAKS else None


def score(runs: Sequence[Told], law: tuple[float, float, float], risk: float) -> str:
    """Labels said rightly, runs out of memory foreseen and false alarms, as a row of a table."""
    activations, transients, sigma = law
    margin = -NormalDist().inv_cdf(risk) * sigma
    said = [run.log_memory(activations, transients, whole=True) + margin > math.log(run.device_bytes) for run in runs]
    out = [answer for run, answer in zip(runs, said, strict=True) if run.ran_out]
    fits = [answer for run, answer in zip(runs, said, strict=True) if not run.ran_out]
    right = (sum(out) + len(fits) - sum(fits)) / len(runs)
    return f"{right:.1%} | {sum(out)} of {len(out)} | {sum(fits)} of {len(fits)}"


def main() -> None:
    """Print the law of all sources, those of profiles, and the scores of sources left out, in Markdown."""
    paths = [Path(name) for name in sys.argv[1:]] or list(TABLES)
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        sys.exit(f"{', '.join(missing)}: not there; give paths of measured tables")
    runs = told_runs(paths)
    whole = fitted(runs, START, FREE)
    own = own_spread(runs, *whole[:2]) or 0.0
    columns = ("runs of", "runs", "sources", "activations", "transients", "spread", "of a run", "margin at 0.05")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    _print_law("all profiles", runs, whole, own)
    prior = tuple(math.log(value) for value in whole)
    for profile, members in sorted(grouped(runs, lambda run: run.profile).items()):
        law = fitted(members, prior, NARROW)
        _print_law(profile, members, law, own_spread(members, *law[:2]))
    print("\n| source left out | risk | said rightly | out of memory foreseen | false alarms |\n|---|---|---|---|---|")
    for source, members in grouped(runs, lambda run: run.source).items():
        if not any(run.ran_out for run in members):
            continue
        law = fitted([run for run in runs if run.source != source], START, FREE)
        name = source if len(members) >= LABELLED else f"{source} (few labels)"
        for risk in RISKS:
            print(f"| {name} | {risk:g} | {score(members, law, risk)} |")


def _print_law(name: str, runs: Sequence[Told], law: tuple[float, float, float], own: float | None) -> None:
    activations, transients, sigma = law
    n_sources = len({run.source for run in runs})
    shared = math.sqrt(max(0.0, sigma**2 - (own or 0.0) ** 2))
    told = MemoryLaw(1.0, 1.0, 1.0, shared, own or 0.0, "")
    of_run = "too few" if own is None else f"{own:.3f}"
    print(
        f"| {name} | {len(runs)} | {n_sources} | {activations:.2f} | {transients:.2f} | {sigma:.3f} | {of_run} | "
        f"{told.margin(0.05):.2f} |"
    )


if __name__ == "__main__":
    main()
