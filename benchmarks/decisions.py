"""Writes docs/decisions-accuracy.md and docs/decisions-accuracy.svg: what each rule of choosing a plan would have run.

Run from the root of the repository: python -m benchmarks.decisions [folder of the tables]
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.decisions_coverage import Row, coverage, time_law_of, time_law_table
from benchmarks.decisions_noise import noise_table, pairs_of
from benchmarks.decisions_page import OURS, decisions_page, decisions_svg
from benchmarks.decisions_rules import (
    Group,
    Plan,
    Rule,
    by_risk,
    fastest_that_fit,
    predicted_order,
    random_result,
    result_of,
)
from benchmarks.held_out.leave_one_out import constants_without, processes_of_one_thread
from benchmarks.held_out.memory_laws import laws_without, told_memory
from meshwright.app.evidence.training.cells import NotPredictedError
from meshwright.app.evidence.training.prediction import Constants, costed_run, predict_run
from meshwright.app.evidence.training.rows import RunStatus, ValidationRun, read_measured_runs
from meshwright.app.evidence.training.scores import score_run
from meshwright.app.evidence.training.sources import sources_of
from meshwright.costmodels.model.memory_law import GENERIC_LAW, MemoryLaw
from meshwright.solver.training.costs.evaluate import time_breakdown
from meshwright.solver.training.report.equals import shares_of
from meshwright.solver.training.search.best_first import decision_tables

TABLES = Path("../shared/data/training")
SOURCES = Path("benchmarks/measured.sources.yaml")
PAGE, PLOT = Path("docs/decisions-accuracy.md"), Path("docs/decisions-accuracy.svg")

MARGINS = (1.05, 1.10, 1.15, 1.25)
FEWEST_PLANS = 2


def read_rows(folder: Path) -> list[Row]:
    """Every row of the training tables that is predicted, through the requests that validate writes, with rates and the law of
    memory that have not seen its source."""
    paths = [folder / name for name in ("measured.csv", "newer.csv")]
    measured = [run for path in paths for run in read_measured_runs(path, sources_of(path, SOURCES))]
    laws = laws_without(told_memory(measured))
    timed = [each.measured for each in (score_run(run, Constants()) for run in measured) if each.time_ratio is not None]
    constants, of_others = constants_without(timed)
    found = (_row(run, laws, of_others.get(run.run.source, constants)) for run in measured)
    return [row for row in found if row is not None]


def _row(measured: ValidationRun, laws: Mapping[str, MemoryLaw], rates: Constants) -> Row | None:
    run, outcome = measured.run, measured.outcome
    ended_well = outcome.status is RunStatus.OK
    if ended_well and outcome.step_time_s is None and outcome.peak_memory_gb is None:
        return None
    # Sources that tell nothing of memory have no law of their own to leave out.
    law = laws.get(run.source, GENERIC_LAW)
    try:
        constants = replace(rates, memory=law)
        costed, predicted = costed_run(run, constants), predict_run(run, constants)
    except NotPredictedError:
        return None
    breakdown = time_breakdown(costed.decision, costed.cost, decision_tables(costed.decision, costed.costs))
    peak = outcome.peak_memory_gb if ended_well else None
    plan = Plan(
        costed.cost.step_time_s,
        max(stage.device_bytes / stage.usable_bytes for stage in costed.cost.stages),
        None if peak is None else peak / predicted.peak_memory_gb,
        outcome.step_time_s if ended_well else None,
        shares_of(breakdown),
    )
    return Row(run.source, f"{run.source} {run.gpu}", run.group, plan, law)


def groups_of(rows: Sequence[Row]) -> list[Group]:
    """Groups of at least two plans of which one ran."""
    members: dict[tuple[str, str], dict[Plan, None]] = defaultdict(dict)
    for row in rows:
        if row.group:
            members[row.source, row.group][row.plan] = None
    groups = [Group(source, name, tuple(plans)) for (source, name), plans in members.items()]
    return [group for group in groups if len(group.plans) >= FEWEST_PLANS and any(plan.step_s for plan in group.plans)]


def main() -> None:
    """Write the page and the plot."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else TABLES
    if not folder.is_dir():
        sys.exit(f"{folder} is not there; give the folder of measured.csv and newer.csv")
    with processes_of_one_thread(1) as pool:
        rows = pool.submit(read_rows, folder).result()
    groups = groups_of(rows)
    laws = {row.source: row.law for row in rows}
    rules: dict[str, Rule] = {
        "fits, predicted fastest first": fastest_that_fit(1.0),
        **{f"the same with {margin - 1:.0%} of memory to spare": fastest_that_fit(margin) for margin in MARGINS},
        "predicted fastest first, fit or not": predicted_order,
        OURS: by_risk,
    }
    results = {name: result_of(rule, groups, laws) for name, rule in rules.items()}
    results["random order"] = random_result(groups, laws)
    crashing = [group for group in groups if group.has_crash]
    with_crash = {name: result_of(rule, crashing, laws) for name, rule in rules.items()}
    with_crash["random order"] = random_result(crashing, laws)
    page = decisions_page(results, with_crash, groups, time_law_table(rows), coverage(rows), noise_table(pairs_of(groups)))
    PAGE.write_text(page, encoding="utf-8")
    PLOT.write_text(decisions_svg(results), encoding="utf-8")
    print(f"wrote {PAGE} and {PLOT}; the law of this fit, for costmodels/calibration/from_runs.py:\n{time_law_of(rows)}")


if __name__ == "__main__":
    main()
