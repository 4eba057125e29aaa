"""Fits the laws of memory of implementation profiles to measured training runs, and scores them on sources left out.

Run from the root of the repository: python benchmarks/fit_memory.py [paths of measured tables]

Laws of profiles are printed as their files hold them. Sources with labels are scored by the law that has not seen them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist

from meshwright.app.validation.held_out.memory_laws import (
    ToldMemory,
    fitted_law,
    grouped,
    laws_without,
    log_memory,
    told_memory,
)
from meshwright.app.validation.rows import read_measured_runs
from meshwright.app.validation.sources import sources_of
from meshwright.costmodels.model.memory_law import MemoryLaw

TABLES = (Path("../shared/data/training/measured.csv"), Path("../shared/data/training/newer.csv"))
SOURCES = Path("benchmarks/measured.sources.yaml")

LABELLED = 100
"""Labels from which a source is scored by itself."""

RISKS = (0.5, 0.2, 0.1, 0.05)


def main() -> None:
    """Print the law of all sources, those of profiles, and the scores of sources left out, in Markdown."""
    paths = [Path(name) for name in sys.argv[1:]] or list(TABLES)
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        sys.exit(f"{', '.join(missing)}: not there; give paths of measured tables")
    runs = told_memory([run for path in paths for run in read_measured_runs(path, sources_of(path, SOURCES))])
    of_all = fitted_law(runs)
    columns = ("runs of", "told by", "allocator", "activations", "transients", "shared spread", "of a run", "margin at 0.05")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    print(_line("all profiles", of_all))
    for profile, members in sorted(grouped(runs, lambda run: run.profile).items()):
        print(_line(profile, fitted_law(members, of_all)))
    print("\n| source left out | risk | said rightly | out of memory foreseen | false alarms |\n|---|---|---|---|---|")
    laws = laws_without(runs)
    for source, members in grouped(runs, lambda run: run.source).items():
        if not any(run.ran_out for run in members):
            continue
        name = source if len(members) >= LABELLED else f"{source} (few labels)"
        for risk in RISKS:
            print(f"| {name} | {risk:g} | {score(members, laws[source], risk)} |")


def score(runs: Sequence[ToldMemory], law: MemoryLaw, risk: float) -> str:
    """Labels said rightly, runs out of memory foreseen and false alarms, as a row of a table."""
    margin = -NormalDist().inv_cdf(risk) * law.log_sigma
    said = [
        float(median) + margin > math.log(run.device_bytes) for run, median in zip(runs, log_memory(runs, law), strict=True)
    ]
    out = [answer for run, answer in zip(runs, said, strict=True) if run.ran_out]
    fits = [answer for run, answer in zip(runs, said, strict=True) if not run.ran_out]
    right = (sum(out) + len(fits) - sum(fits)) / len(runs)
    return f"{right:.1%} | {sum(out)} of {len(out)} | {sum(fits)} of {len(fits)}"


def _line(name: str, law: MemoryLaw) -> str:
    figures = (
        f"{law.allocator:.2f} | {law.activations:.2f} | {law.transients:.2f} | {law.shared_sigma:.3f} | {law.own_sigma:.3f}"
    )
    return f"| {name} | {law.origin} | {figures} | {law.margin(0.05):.2f} |"


if __name__ == "__main__":
    main()
