"""The bands of all other runs of a cluster before and after one of them was measured, and whether they hold."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import NormalDist, fmean, pstdev, stdev

from benchmarks.decisions_rules import Plan
from meshwright.costmodels.calibration.from_runs import DEFAULT_CONFIDENCE, TimeLaw
from meshwright.costmodels.fitting.calibration import fitted_time, learned_time
from meshwright.costmodels.model.memory_law import MemoryEvidence, MemoryLaw, MemoryOutcome, learned_law

HIGH = NormalDist().inv_cdf(0.95)
FEWEST_RUNS = 2

TELLING = 8
"""Runs of a cluster from which its own scatter is told well enough to say how clusters differ in it."""

KNOWN = (1, 3, 5)
DRAWS = 40
"""Sets of runs that are drawn of a cluster, where more than one is known."""

CONFIDENCES = (0.5, 0.75, 0.9, 0.95)
DIGITS = 3
"""Decimals of spreads that ship."""

LAW_OF_ALL = "all sources, as it ships"

TIME_LAW = """How long a step takes over what is predicted, where nothing was measured yet: what all runs of a source on one
device share, and what each has of its own, both lognormal. Fitted to {runs:,} runs of {clusters} pairs of source and device, of
{sources} sources, pairs counting alike: the root mean square of their means, and the spread inside a pair of which 95% of runs
stay below the P95 that it tells. It ships in `costmodels/calibration/from_runs.py`; by it targets of a request
hold with its confidence ([targets at risk](training.md#targets-at-risk)).
"""

HELD = """Shares of runs that stay below what is promised, by confidence, with the law of all other sources; pairs count alike.
"""

INTRODUCTION = """Runs of one source on one device stand for a cluster. Some of its runs are reported (each in turn, or sets
drawn of them), and all others are predicted with what they taught; clusters count alike, those with more runs than are
reported. If the laws are right, 95% of runs stay below the P95, and 90% between the P5 and the P95, which are the ends of a
band. The laws of memory and of times, and of either how much clusters differ in their scatter, have not seen the source.

Runs tell what they share, and how far each scatters around it, for that differs more from cluster to cluster than anything
else: by a factor of {memory} of peaks and of {times} of times (one spread of the scatter's logarithm). Of a cluster whose
runs agree the band narrows, of one whose runs do not it widens; with one scatter for all clusters, in the last column, it
does neither, and holds too few of the second.
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


Learning = Callable[[Sequence[float], float], Band]
"""The band after some runs, given as logarithms of ratios, and the spread of the scatter that clusters differ by."""


@dataclass(frozen=True)
class Told:
    """The runs of a cluster, as logarithms of measured over predicted figures, and how some of them are learned from."""

    ratios: tuple[float, ...]
    scatter: float
    learn: Learning

    def shares(self, known: int, scatter: float) -> tuple[float, float, float]:
        """After so many runs: the logarithm of P95 over median, and the shares of the others below it and inside the band."""
        cells = []
        for taken in self._sets(known):
            band = self.learn([self.ratios[i] for i in taken], scatter)
            others = [ratio for i, ratio in enumerate(self.ratios) if i not in taken]
            below, inside = (fmean(map(test, others)) for test in (band.below, band.inside))
            cells.append((HIGH * band.spread, below, inside))
        width, below, inside = (fmean(column) for column in zip(*cells, strict=True))
        return width, below, inside

    def _sets(self, known: int) -> list[tuple[int, ...]]:
        if known == 0:
            return [()]
        if known == 1:
            return [(i,) for i in range(len(self.ratios))]
        random = Random(known)
        return [tuple(random.sample(range(len(self.ratios)), known)) for _ in range(DRAWS)]


def coverage(rows: Sequence[Row]) -> str:
    """Return the width of bands and the share of runs in them, before and after runs of the same cluster, in Markdown."""
    times, peaks = told_times(rows), told_peaks(rows)
    factors = {name: scatter_factor(scatter_of(told)) for name, told in (("memory", peaks), ("times", times))}
    lines = [
        INTRODUCTION.format(**factors),
        "| figure | known runs | clusters | P95 over median | least and most | below it | inside the band | "
        "with one scatter: P95 over median, below, inside |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, told in (("step time", times), ("peak memory", peaks)):
        for known in (0, *KNOWN):
            members = [each for each in told if len(each.ratios) > known]
            own = [each.shares(known, each.scatter) for each in members]
            one = [each.shares(known, 0.0) for each in members]
            widths = [math.exp(width) for width, _, _ in own]
            (width, below, inside), (of_one, *shares) = (
                tuple(fmean(column) for column in zip(*found, strict=True)) for found in (own, one)
            )
            ends = f"{min(widths):.2f}, {max(widths):.2f}"
            lines.append(
                f"| {name} | {known or 'none'} | {len(members)} | {math.exp(width):.2f} | {ends} | "
                f"{below:.0%} | {inside:.0%} | {math.exp(of_one):.2f}, {shares[0]:.0%}, {shares[1]:.0%} |"
            )
    return "\n".join(lines)


def scatter_factor(scatter: float) -> str:
    """The factor by which clusters differ in what their runs scatter by, one spread of its logarithm."""
    return f"{math.exp(scatter):.1f}"


def scatter_of(clusters: Sequence[Told]) -> float:
    """The spread of the logarithm of what runs of a cluster scatter by, less what their number leaves uncertain of it."""
    return _scatter([each.ratios for each in clusters])


def _scatter(clusters: Sequence[Sequence[float]]) -> float:
    telling = [ratios for ratios in clusters if len(ratios) >= TELLING]
    logs = [math.log(stdev(ratios)) for ratios in telling]
    # The variance of the logarithm of a standard deviation of n normal values is about 1 / 2 (n - 1).
    uncertain = fmean(0.5 / (len(ratios) - 1) for ratios in telling)
    return math.sqrt(max(0.0, pstdev(logs) ** 2 - uncertain))


def told_times(rows: Sequence[Row]) -> list[Told]:
    """Clusters with at least two timed runs; the prior of each is of the other sources."""
    ratios = _time_ratios(rows)
    found = []
    for source, own in ratios.values():
        if len(own) < FEWEST_RUNS:
            continue
        prior = times_without(source, list(ratios.values()))
        learn = partial(_learned_times, prior)
        found.append(Told(tuple(own), _scatter([each for other, each in ratios.values() if other != source]), learn))
    return found


def _learned_times(prior: TimeLaw, known: Sequence[float], scatter: float) -> Band:
    layouts = {str(place): [ratio] for place, ratio in enumerate(known)}
    return _band_of(learned_time(prior, layouts, scatter=scatter))


def times_without(source: str, clusters: Sequence[tuple[str, Sequence[float]]]) -> TimeLaw:
    """The law of times of all sources but one."""
    return fitted_time(ratios for other, ratios in clusters if other != source)


def time_law_table(rows: Sequence[Row]) -> str:
    """The law of times before any run, and how often it holds for sources that it has not seen, in Markdown."""
    clusters = list(_time_ratios(rows).values())
    runs = sum(len(ratios) for _, ratios in clusters)
    lines = [
        TIME_LAW.format(runs=runs, clusters=len(clusters), sources=len({source for source, _ in clusters})),
        "| law of | shared spread | own spread | measured over predicted at 0.9 |",
        "| --- | --- | --- | --- |",
        law_cells(LAW_OF_ALL, fitted_time(ratios for _, ratios in clusters)),
    ]
    unseen = {source: times_without(source, clusters) for source, _ in clusters}
    least, most = (end(unseen, key=lambda name: unseen[name].log_sigma) for end in (min, max))
    lines += [law_cells(f"all but {source}", unseen[source]) for source in (least, most)]
    held = [f"{fmean(_held(ratios, unseen[source], level) for source, ratios in clusters):.0%}" for level in CONFIDENCES]
    names = " | ".join(f"{level:g}" for level in CONFIDENCES)
    lines += ["", HELD, f"| confidence | {names} |", f"| --- |{' --- |' * len(CONFIDENCES)}", f"| held | {' | '.join(held)} |"]
    return "\n".join(lines)


def time_law_of(rows: Sequence[Row]) -> TimeLaw:
    """The law of times of all sources, with no more decimals than it ships with."""
    law = fitted_time(ratios for _, ratios in _time_ratios(rows).values())
    return TimeLaw(law.scale, round(law.shared_sigma, DIGITS), round(law.own_sigma, DIGITS))


def law_cells(name: str, law: TimeLaw) -> str:
    """A law of times as a row of the page's table."""
    factor = law.factor(DEFAULT_CONFIDENCE)
    return f"| {name} | {law.shared_sigma:.{DIGITS}f} | {law.own_sigma:.{DIGITS}f} | {factor:.2f} |"


def _held(ratios: Sequence[float], law: TimeLaw, confidence: float) -> float:
    """The share of runs that stay below what is promised."""
    return fmean(ratio <= math.log(law.factor(confidence)) for ratio in ratios)


def told_peaks(rows: Sequence[Row]) -> list[Told]:
    """Clusters with at least two measured peaks."""
    laws = {row.source: row.law for row in rows}
    ratios = _by_cluster(rows, lambda plan: plan.memory_ratio)
    found = []
    for source, own in ratios.values():
        if len(own) < FEWEST_RUNS:
            continue
        scatter = _scatter([each for other, each in ratios.values() if other != source])
        found.append(Told(tuple(own), scatter, partial(_learned_peaks, laws[source])))
    return found


def _learned_peaks(prior: MemoryLaw, known: Sequence[float], scatter: float) -> Band:
    # The law sees ratios alone; sizes only tell plans apart.
    sizes = [1.0 + place for place in range(len(known))]
    outcomes = [
        MemoryOutcome(MemoryEvidence.PEAK, size, size * math.exp(ratio)) for size, ratio in zip(sizes, known, strict=True)
    ]
    return _band_of(learned_law(prior, outcomes, origin="runs", scatter=scatter))


def _time_ratios(rows: Sequence[Row]) -> Mapping[str, tuple[str, list[float]]]:
    return _by_cluster(rows, lambda plan: None if plan.step_s is None else plan.step_s / plan.predicted_s)


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
