"""The long trials: ``python -m tests.crash [postgresql|failover|sqlite] [--jobs N] [--rounds N]``.

Figures: docs/reliability.md. ``failover`` is PostgreSQL whose first restart is a fail-over to its replica.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.crash.databases import postgresql_cluster, postgresql_failing_over, sqlite_file
from tests.crash.trial import Outcome, Violence, run_trial

DATABASES = {
    "postgresql": lambda folder: postgresql_cluster(),
    "failover": lambda folder: postgresql_failing_over(),
    "sqlite": sqlite_file,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("databases", nargs="*", default=list(DATABASES), choices=list(DATABASES))
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    faults = 0
    for kind in given.databases:
        workers = 1 if kind == "sqlite" else 3
        violence = Violence(given.jobs, workers, given.rounds, seed=given.seed)
        with tempfile.TemporaryDirectory() as folder, DATABASES[kind](Path(folder)) as database:
            outcome = run_trial(database, violence, lambda line: print(line, flush=True))
        faults += report(kind, violence, outcome)
    return 1 if faults else 0


def report(kind: str, violence: Violence, outcome: Outcome) -> int:
    """Print what a trial counted; the number of faults."""
    blows = ", ".join(f"{count} x {blow}" for blow, count in sorted(outcome.blows.items()))
    print(f"{kind}, {violence.workers} workers, {violence.rounds} rounds ({blows}), {outcome.seconds:.0f} s:")
    print(f"  {outcome.submitted} submitted, {outcome.finished} finished, {outcome.stored} plans")
    print(f"  {outcome.takeovers} takeovers")
    for fault in outcome.faults[:20]:
        print(f"  FAULT: {fault}")
    print(f"  {len(outcome.faults)} faults")
    return len(outcome.faults)


if __name__ == "__main__":
    raise SystemExit(main())
