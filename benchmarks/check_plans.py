"""CPU time of ``meshwright check examples/ci/plans``: cold (no stored plan) and warm (all stored).

    python -m benchmarks.check_plans [DIR]

Prints CPU seconds of the command and of the solves (in processes of their own), and the wall time, which on a loaded
machine says little.
Targets on 2 cores: under 60 s cold, under 2 s warm.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SAMPLE = Path(__file__).parent.parent / "examples" / "ci" / "plans"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLE
    with tempfile.TemporaryDirectory() as store:
        environment = os.environ | {"MESHWRIGHT_DATABASE_URL": f"sqlite:///{store}/plans.db"}
        for state in ("cold", "warm", "warm"):
            measure(folder, state, environment, Path(store) / "plans.db")


def measure(folder: Path, state: str, environment: dict[str, str], store: Path) -> None:
    """Run the check once and print its times."""
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-c", "from meshwright.app.cli.main import main; main()", "check", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    wall_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    solves_s = solve_seconds(store) if state == "cold" else 0.0
    print(f"{state}: {cpu_s:.2f} s CPU of the command, {solves_s:.2f} s of solves, {wall_s:.2f} s wall, exit {done.returncode}")
    print("   ", done.stdout.strip().splitlines()[-1])


def solve_seconds(store: Path) -> float:
    """CPU seconds that the plans in the store took."""
    with contextlib.closing(sqlite3.connect(store)) as database:
        return sum(json.loads(text)["search"]["seconds"] for (text,) in database.execute("select plan from plans"))


if __name__ == "__main__":
    main()
