"""Fits the laws of memory of implementation profiles to measured training runs, and scores them on sources left out.

Run from the root of the repository: python -m benchmarks.fit_memory [--write] [paths of measured tables]

Laws are printed as docs/cost-models.md has them. With --write those of profiles go into their files; the law of all others,
which is printed too, is in costmodels/model/memory_law.py. Sources with labels are scored by the law that has not seen them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import NormalDist

from benchmarks.held_out.memory_laws import ToldMemory, fitted_laws, grouped, laws_without, log_memory, told_memory
from meshwright.app.evidence.training.rows import read_measured_runs
from meshwright.app.evidence.training.sources import sources_of
from meshwright.costmodels.implementations.profile import implementation_profiles
from meshwright.costmodels.model.memory_law import DEFAULT_RISK, MemoryLaw

TABLES = (Path("../shared/data/training/measured.csv"), Path("../shared/data/training/newer.csv"))
SOURCES = Path("benchmarks/measured.sources.yaml")

COLUMNS = ("runs of", "told by", "allocator", "activations", "transients", "shared spread", "of a run", "margin at 0.05")

LABELLED = 100
"""Labels from which a source is scored by itself."""

RISKS = (0.5, 0.2, 0.1, 0.05)

PROFILES = Path("costmodels/implementations/profiles")
ALSO = {"torchtitan-0.3-compiled": "torchtitan-0.3"}
"""Profiles that have the law of another one, of the same framework: its runs are of both."""

DIGITS = 3
"""Decimals of factors and spreads that ship: runs tell two."""


def main() -> None:
    """Print the law of all sources, those of profiles, and the scores of sources left out, in Markdown."""
    options = argparse.ArgumentParser(description="Fit the laws of memory to measured training runs.")
    options.add_argument("tables", nargs="*", type=Path, default=list(TABLES), help="tables of measured runs")
    options.add_argument("--write", action="store_true", help="write the laws of profiles into their files")
    given = options.parse_args()
    missing = [str(path) for path in given.tables if not path.exists()]
    if missing:
        sys.exit(f"{', '.join(missing)}: not there; give paths of measured tables")
    runs = told_memory([run for path in given.tables for run in read_measured_runs(path, sources_of(path, SOURCES))])
    laws = fitted_laws(runs)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    print(law_cells("all profiles (the law of others)", shipped(laws.of_all)))
    found = {name: shipped(law) for name, law in laws.of_profiles.items()}
    for name, law in found.items():
        print(law_cells(name, law))
    print(f"\n{shipped(laws.of_all)}")
    if given.write:
        _write(found)
    print("\n| source left out | risk | said rightly | out of memory foreseen | false alarms |\n|---|---|---|---|---|")
    unseen = laws_without(runs)
    for source, members in grouped(runs, lambda run: run.source).items():
        if not any(run.ran_out for run in members):
            continue
        name = source if len(members) >= LABELLED else f"{source} (few labels)"
        for risk in RISKS:
            print(f"| {name} | {risk:g} | {score(members, unseen[source], risk)} |")


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


def shipped(law: MemoryLaw) -> MemoryLaw:
    """The law as it ships, with no more decimals than runs tell."""
    rounded = {name: round(value, DIGITS) for name, value in asdict(law).items() if isinstance(value, float)}
    return replace(law, **rounded)


def law_cells(name: str, law: MemoryLaw) -> str:
    """A law as a row of the page's table."""
    factors = f"{law.allocator:.3f} | {law.activations:.3f} | {law.transients:.3f}"
    spreads = f"{law.shared_sigma:.3f} | {law.own_sigma:.3f} | {law.margin(DEFAULT_RISK):.2f}"
    return f"| {name} | {law.origin} | {factors} | {spreads} |"


def _write(laws: Mapping[str, MemoryLaw]) -> None:
    """Write the laws of profiles into their files; a profile without runs keeps to the law of others."""
    for profile in implementation_profiles():
        law = laws.get(ALSO.get(profile.name, profile.name))
        path = PROFILES / f"{profile.name}.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        document["facts"].pop("memory", None)
        if law is not None:
            value = {name: value for name, value in asdict(law).items() if name != "scale"}
            basis = f"fitted by benchmarks/fit_memory.py to {law.origin}; prior: the law of all profiles"
            document["facts"]["memory"] = {"value": value, "basis": basis}
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
