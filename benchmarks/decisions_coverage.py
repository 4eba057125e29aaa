"""The bands of all other runs of a cluster before and after one of them was measured, and whether they hold."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from benchmarks.decisions_rules import Plan
from meshwright.costmodels.calibration.from_runs import UNMEASURED_TIME, TimeLaw
from meshwright.costmodels.fitting.run_times import learned_time
from meshwright.costmodels.model.memory_law import MemoryLaw, MemoryOutcome, Outcome, learned_law

HIGH = NormalDist().inv_cdf(0.95)
FEWEST_RUNS = 2

INTRODUCTION = """Runs of one source on one device stand for a cluster. Each of its runs is reported in turn, and all others are
predicted with what it taught; clusters count alike. If the laws are right, 95% of runs stay below the P95, and 90% between
the P5 and the P95, which are the ends of a band. The law of memory has not seen the source; that of times, two spreads, is
fitted without it too.
"""


@dataclass(frozen=True)
class Row:
    """A predicted row of a table, and the law of memory that has not seen its source."""

    source: str
    device: str
    group: str
    plan: Plan
    law: MemoryLaw


@dataclass(frozen=True)
class Band:
    """Logarithms of the median and of the spread of a figure over what was predicted of it."""

    median: float
    spread: float

    def below(self, ratio: float) -> bool:
        """True if a run stays below the P95."""
        return ratio <= self.median + HIGH * self.spread

    def inside(self, ratio: float) -> bool:
        """True if a run falls between the P5 and the P95."""
        return abs(ratio - self.median) <= HIGH * self.spread


@dataclass(frozen=True)
class Told:
    """The runs of a cluster, as logarithms of measured over predicted figures, and what is said before and after each."""

    ratios: tuple[float, ...]
    before: Band
    after: tuple[Band, ...]

    def line(self) -> tuple[float, ...]:
        """P95 over the median, share below it and share inside the band, before any run and after one."""
        alone = [(self.before, ratio) for ratio in self.ratios]
        others = [(band, ratio) for i, band in enumerate(self.after) for j, ratio in enumerate(self.ratios) if i != j]
        return (*self._shares(alone), *self._shares(others))

    def _shares(self, pairs: Sequence[tuple[Band, float]]) -> tuple[float, float, float]:
        width = fmean(HIGH * band.spread for band, _ in pairs)
        return width, fmean(band.below(ratio) for band, ratio in pairs), fmean(band.inside(ratio) for band, ratio in pairs)


def coverage(rows: Sequence[Row]) -> str:
    """Return the width of bands and the share of runs in them, before and after one run of the same cluster, in Markdown."""
    lines = [
        INTRODUCTION,
        "| figure | clusters | before: P95 over median | below it | inside the band | after one run: P95 over median | "
        "below it | inside the band |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, told in (("step time", told_times(rows)), ("peak memory", told_peaks(rows))):
        cells = [fmean(column) for column in zip(*(each.line() for each in told), strict=True)]
        shown = [f"{math.exp(cell):.2f}" if place % 3 == 0 else f"{cell:.0%}" for place, cell in enumerate(cells)]
        lines.append(f"| {name} | {len(told)} | {' | '.join(shown)} |")
    return "\n".join(lines)


def told_times(rows: Sequence[Row]) -> list[Told]:
    """Clusters with at least two timed runs; the prior of each is of the other sources."""
    ratios = _by_cluster(rows, lambda plan: None if plan.step_s is None else plan.step_s / plan.predicted_s)
    found = []
    for cluster, (source, own) in ratios.items():
        if len(own) < FEWEST_RUNS:
            continue
        prior = times_without(source, [(other, each) for other, each in ratios.values()])
        after = [learned_time(prior, {cluster: [ratio]}) for ratio in own]
        found.append(Told(tuple(own), _band_of(prior), tuple(map(_band_of, after))))
    return found


def times_without(source: str, clusters: Sequence[tuple[str, Sequence[float]]]) -> TimeLaw:
    """The law of times of all sources but one: the root mean square of the means of clusters, and the spread inside a cluster
    that is shipped, which 95% of runs of all sources chose."""
    means = [fmean(ratios) for other, ratios in clusters if other != source]
    shared = math.sqrt(fmean(mean**2 for mean in means))
    return TimeLaw(scale=1.0, shared_sigma=shared, own_sigma=UNMEASURED_TIME.own_sigma)


def told_peaks(rows: Sequence[Row]) -> list[Told]:
    """Clusters with at least two measured peaks."""
    laws = {row.source: row.law for row in rows}
    found = []
    for source, own in _by_cluster(rows, lambda plan: plan.memory_ratio).values():
        if len(own) < FEWEST_RUNS:
            continue
        # Sizes cancel: the law sees the ratio alone.
        prior = laws[source]
        after = [learned_law(prior, [MemoryOutcome(Outcome.PEAK, 1.0, math.exp(ratio))], origin="a run") for ratio in own]
        found.append(Told(tuple(own), _band_of(prior), tuple(map(_band_of, after))))
    return found


def _by_cluster(rows: Sequence[Row], figure: Callable[[Plan], float | None]) -> Mapping[str, tuple[str, list[float]]]:
    """By cluster its source and the logarithms of a ratio of its plans, where they have one."""
    found: dict[str, tuple[str, list[float]]] = defaultdict(lambda: ("", []))
    for row in rows:
        ratio = figure(row.plan)
        if ratio is not None:
            found[row.device] = (row.source, [*found[row.device][1], math.log(ratio)])
    return found


def _band_of(law: TimeLaw | MemoryLaw) -> Band:
    return Band(math.log(law.scale), law.log_sigma)
