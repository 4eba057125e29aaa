"""Writes docs/decisions-accuracy.md and docs/decisions-accuracy.svg: what each rule of choosing a plan would have run.

Run from the root of the repository: python -m benchmarks.decisions [folder of the tables]
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, fmean, median, stdev

from benchmarks.decisions_page import decisions_page, decisions_svg
from benchmarks.decisions_rules import (
    RISK,
    Group,
    Plan,
    Rule,
    by_risk,
    fastest_that_fit,
    predicted_order,
    random_result,
    result_of,
)
from meshwright.app.validation.prediction import costed_run
from meshwright.app.validation.rows import MeasuredRun, RunStatus, read_measured_runs
from meshwright.app.validation.scores import score_run
from meshwright.app.validation.sources import sources_of
from meshwright.costmodels.calibration.from_runs import UNMEASURED_TIME
from meshwright.costmodels.fitting.run_times import learned_time
from meshwright.costmodels.model.memory_law import MemoryLaw, MemoryOutcome, Outcome, learned_law

TABLES = Path("../shared/data/training")
SOURCES = Path("benchmarks/measured.sources.yaml")
PAGE, PLOT = Path("docs/decisions-accuracy.md"), Path("docs/decisions-accuracy.svg")

MARGINS = (1.05, 1.10, 1.15, 1.25)
FEWEST_PLANS = 2


@dataclass(frozen=True)
class Row:
    """A predicted row of a table."""

    source: str
    device: str
    group: str
    plan: Plan


def read_rows(folder: Path) -> list[Row]:
    """Every row of the training tables that is predicted, through the requests that validate writes."""
    rows = []
    for name in ("measured.csv", "newer.csv"):
        path = folder / name
        for measured in read_measured_runs(path, sources_of(path, SOURCES)):
            row = _row(measured)
            if row is not None:
                rows.append(row)
    return rows


def _row(measured: MeasuredRun) -> Row | None:
    run, outcome = measured.run, measured.outcome
    prediction = score_run(measured).prediction
    ended_well = outcome.status is RunStatus.OK
    if prediction is None or (ended_well and outcome.step_time_s is None and outcome.peak_memory_gb is None):
        return None
    cost = costed_run(run).cost
    peak = outcome.peak_memory_gb if ended_well else None
    plan = Plan(
        prediction.step_time_s,
        max(stage.need_bytes / stage.capacity_bytes for stage in cost.stages),
        None if peak is None else peak / prediction.peak_memory_gb,
        outcome.step_time_s if ended_well else None,
    )
    return Row(run.source, f"{run.source} {run.gpu}", run.group, plan)


def groups_of(rows: Sequence[Row]) -> list[Group]:
    """Groups of at least two plans of which one ran."""
    members: dict[tuple[str, str], dict[Plan, None]] = defaultdict(dict)
    for row in rows:
        if row.group:
            members[row.source, row.group][row.plan] = None
    groups = [Group(source, name, tuple(plans)) for (source, name), plans in members.items()]
    return [group for group in groups if len(group.plans) >= FEWEST_PLANS and any(plan.step_s for plan in group.plans)]


def law_without(source: str, rows: Sequence[Row]) -> MemoryLaw:
    """The law of memory of all other sources: the mean and spread of their means, the median spread inside."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.source != source and row.plan.memory_ratio is not None:
            ratios[row.device].append(math.log(row.plan.memory_ratio))
    means = [fmean(each) for each in ratios.values()]
    own = median(stdev(each) for each in ratios.values() if len(each) > FEWEST_PLANS)
    return MemoryLaw(
        allocator=1.0,
        activations=1.0,
        transients=1.0,
        shared_sigma=stdev(means),
        own_sigma=own,
        origin=f"all sources but {source}",
        scale=math.exp(fmean(means)),
    )


def main() -> None:
    """Write the page and the plot."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else TABLES
    if not folder.is_dir():
        sys.exit(f"{folder} is not there; give the folder of measured.csv and newer.csv")
    rows = read_rows(folder)
    groups = groups_of(rows)
    laws = {source: law_without(source, rows) for source in {group.source for group in groups}}
    rules: dict[str, Rule] = {
        "fits, predicted fastest first": fastest_that_fit(1.0),
        **{f"the same with {margin - 1:.0%} of memory to spare": fastest_that_fit(margin) for margin in MARGINS},
        "predicted fastest first, fit or not": predicted_order,
        f"chance to run out at most {RISK:.0%}, learning (ours)": by_risk,
    }
    results = {name: result_of(rule, groups, laws) for name, rule in rules.items()}
    results["random order"] = random_result(groups, laws)
    crashing = [group for group in groups if group.has_crash]
    with_crash = {name: result_of(rule, crashing, laws) for name, rule in rules.items()}
    with_crash["random order"] = random_result(crashing, laws)
    page = decisions_page(results, with_crash, groups, coverage(rows))
    PAGE.write_text(page, encoding="utf-8")
    PLOT.write_text(decisions_svg(results), encoding="utf-8")
    print(f"wrote {PAGE} and {PLOT}")


def coverage(rows: Sequence[Row]) -> str:
    """Return the width of nine-of-ten bands and the share of runs in them, before and after one run of the same cluster."""
    times: dict[str, list[float]] = defaultdict(list)
    memory: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.plan.step_s is not None:
            times[row.device].append(math.log(row.plan.step_s / row.plan.predicted_s))
        if row.plan.memory_ratio is not None:
            memory[row.device].append(math.log(row.plan.memory_ratio))
    lines = [
        "Runs of one source on one device stand for a cluster. Each of its runs is reported in turn, and all others are",
        "predicted with what it taught; clusters count alike. If the laws are right, 95% of runs stay below the P95.",
        "",
        "| figure | clusters | before: P95 over median | runs below it | after one run: P95 over median | runs below it |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    known = {"step time": (times, _time_spreads), "peak memory": (memory, _memory_spreads)}
    for name, (ratios, spreads) in known.items():
        shared = {cluster: each for cluster, each in ratios.items() if len(each) >= FEWEST_PLANS}
        before, after = [], []
        widths: tuple[list[float], list[float]] = ([], [])
        for cluster, each in shared.items():
            told = spreads(cluster, each, rows)
            before.append(fmean(x <= high for x in each for high in (told[0],)))
            after.append(fmean(x <= high for i, high in enumerate(told[1]) for j, x in enumerate(each) if i != j))
            widths[0].append(told[2])
            widths[1].append(told[3])
        cells = (math.exp(fmean(widths[0])), fmean(before), math.exp(fmean(widths[1])), fmean(after))
        lines.append(f"| {name} | {len(shared)} | {cells[0]:.2f} | {cells[1]:.0%} | {cells[2]:.2f} | {cells[3]:.0%} |")
    return "\n".join(lines)


HIGH = NormalDist().inv_cdf(0.95)


def _time_spreads(cluster: str, each: Sequence[float], rows: Sequence[Row]) -> tuple[float, list[float], float, float]:
    """The high end before any run, after each run, and how far both are over the median."""
    laws = [learned_time(UNMEASURED_TIME, {"run": [x]}) for x in each]
    high = HIGH * UNMEASURED_TIME.log_sigma
    return high, [math.log(law.scale) + HIGH * law.log_sigma for law in laws], high, HIGH * laws[0].log_sigma


def _memory_spreads(cluster: str, each: Sequence[float], rows: Sequence[Row]) -> tuple[float, list[float], float, float]:
    prior = law_without(cluster.split()[0], rows)
    # Sizes cancel: the law sees the ratio alone.
    told = [MemoryOutcome(Outcome.PEAK, prior.scale, math.exp(x)) for x in each]
    laws = [learned_law(prior, [one], origin="a run") for one in told]
    median_now = math.log(prior.scale)
    high = HIGH * prior.log_sigma
    return median_now + high, [math.log(law.scale) + HIGH * law.log_sigma for law in laws], high, HIGH * laws[0].log_sigma


if __name__ == "__main__":
    main()
