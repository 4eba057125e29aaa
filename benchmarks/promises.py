"""Every figure of ``docs/benchmarks-service.md``: ``python -m benchmarks.promises [--only WORD ...]``.

Attacks, load and the re-plan, whose figures are times, run one after another on two cores; restarts, crash trials and the
compressed soak, whose figures are counts, on two others. Each result goes between its marks in the page, with the load of the
machine before and after it, also where a limit did not hold; without ``--write`` it is printed only. Needs four cores that are
free, PostgreSQL's programs and root; 20 to 25 minutes. ``--only`` takes the steps whose name has one of the words. Fails where
a step does.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.service_process import MESHWRIGHT
from tests.crash.databases import postgresql_cluster

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks-service.md"
STEP_S = 1_200.0
"""The longest that a step may take: no step takes half of it."""
TIMES, COUNTS, RESTARTS = "times", "counts", "restarts"
CORES = {TIMES: (0, 1), COUNTS: (2, 3), RESTARTS: (2, 3)}
"""Of the three rows of steps; restarts wait more than they work, and share theirs with the other counts."""
CORES_NEEDED = 4

AT_MOST = re.compile(r"(?P<kind>.+): at most (?P<most>\d+)/s, (?P<cpu>[\d.]+) ms of processor each")
SO_FAR = re.compile(r"\s*\d+ of \d+ plans wait after .*|round \d+: .*|after \d+ restarts: .*|hour (?!12 |72 ).*")
"""Lines that tell how far a measurement was. Of the soak the first and the last hour stay: what grew is seen from these."""
PACED = re.compile(r"\s+(?P<rate>.+): median (?P<median>[\d.]+) ms, p99 (?P<p99>[\d.]+) ms")


def table(output: str) -> str:
    """Return what was printed, its tables as they are."""
    return output.strip()


def outcomes(output: str) -> str:
    """Return what was printed, as it is, without the lines that tell how far a measurement was."""
    lines = "\n".join(line for line in output.splitlines() if not SO_FAR.fullmatch(line))
    return f"```text\n{lines.strip()}\n```"


def rates(output: str) -> str:
    """Return the load of a service as a table."""
    rows, others, first = [], [], ""
    for line in output.splitlines():
        if found := AT_MOST.fullmatch(line):
            first = f"| {found['kind']} | {found['most']}/s | {found['cpu']} ms"
        elif (found := PACED.fullmatch(line)) and first:
            rows.append(f"{first} | {found['rate']}: median {found['median']} ms, 99% within {found['p99']} ms |")
        elif line.strip() and "first-visit" not in line:
            # A link that signs in once is nobody's to read.
            others.append(line.strip())
    head = "| what | at most | processor each | at the rate to be borne |\n|---|---|---|---|"
    return "\n".join([head, *rows, "", *(f"- {line}" for line in others)])


@dataclass(frozen=True)
class Step:
    """One measurement: its mark in the page, the command after Python, how its output is shown, and if it needs a database."""

    name: str
    arguments: tuple[str, ...]
    shown: Callable[[str], str] = outcomes
    row: str = COUNTS
    needs_postgresql: bool = False


LOAD = "benchmarks/service_load.py"
STEPS = (
    Step("attacks-sqlite", ("-m", "benchmarks.attacks", "sqlite"), table, TIMES),
    Step("attacks-postgresql", ("-m", "benchmarks.attacks", "postgresql"), table, TIMES),
    Step("load-sqlite", (LOAD,), rates, TIMES),
    Step("load-postgresql", (LOAD, "--authenticated"), rates, TIMES, needs_postgresql=True),
    Step("load-two-processes", (LOAD, "--authenticated", "--processes", "2"), rates, TIMES, needs_postgresql=True),
    Step("replan", ("benchmarks/replan.py",), outcomes, TIMES),
    Step("restarts", ("-m", "tests.attacks.restarts", "postgresql", "50", "50"), outcomes, RESTARTS),
    Step("crash-failover", ("-m", "tests.crash", "failover"), outcomes, COUNTS),
    Step("crash-sqlite", ("-m", "tests.crash", "sqlite"), outcomes, COUNTS),
    Step("soak", ("-m", "benchmarks.soak", "--hour-s", "3"), outcomes, COUNTS),
)


@dataclass
class Results:
    """The texts of the steps that have ended, and those that failed."""

    is_written: bool
    failed: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, step: Step, text: str, *, is_good: bool) -> None:
        """Print a step's text, and write it into the page if wanted."""
        with self.lock:
            if not is_good:
                self.failed.append(step.name)
            print(f"\n== {step.name}\n{text}", flush=True)
            if self.is_written:
                PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), step.name, text), encoding="utf-8")


def put(page: str, name: str, text: str) -> str:
    """Return a page with a text between the marks of that name; raises ValueError where it has none."""
    begin, end = f"<!-- measured: {name} -->\n", f"<!-- end: {name} -->"
    before, mark, rest = page.partition(begin)
    _, last, after = rest.partition(end)
    if not mark or not last:
        raise ValueError(f"the page has no marks for {name}")
    return f"{before}{begin}\n{text}\n\n{last}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="steps whose name has one of these words")
    parser.add_argument("--write", action="store_true", help="write the results into the page")
    given = parser.parse_args()
    wanted = [step for step in STEPS if not given.only or any(word in step.name for word in given.only)]
    for step in wanted:
        put(PAGE.read_text(encoding="utf-8"), step.name, "")
    results = Results(given.write)
    rows = [threading.Thread(target=run_row, args=(row, wanted, results)) for row in CORES]
    for thread in rows:
        thread.start()
    for thread in rows:
        thread.join()
    print("\n" + (f"failed: {', '.join(sorted(results.failed))}" if results.failed else "all held"))
    return 1 if results.failed else 0


def run_row(row: str, steps: list[Step], results: Results) -> None:
    """Run the steps of a row one after another, on its cores."""
    if (os.cpu_count() or 1) >= CORES_NEEDED:
        # Of this thread, which the processes that it starts inherit.
        os.sched_setaffinity(0, CORES[row])
    for step in steps:
        if step.row == row:
            try:
                run(step, results)
            except (OSError, subprocess.SubprocessError) as error:
                results.add(step, f"not measured: {error}", is_good=False)


def run(step: Step, results: Results) -> None:
    """Run one step."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    arguments = list(step.arguments)
    with ExitStack() as stack:
        if step.needs_postgresql:
            url = stack.enter_context(postgresql_cluster()).url
            subprocess.run([*MESHWRIGHT, "migrate"], env=environment | {"MESHWRIGHT_DATABASE_URL": url}, check=True, cwd=ROOT)
            arguments += ["--database", url]
        began_s, before = time.monotonic(), os.getloadavg()[0]
        command = [sys.executable, *arguments]
        ended = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=STEP_S)
        minutes = (time.monotonic() - began_s) / 60
    shown = " ".join(("python", *step.arguments)) + (" --database URL" if step.needs_postgresql else "")
    said = (
        f"`{shown}`: {minutes:.1f} minutes on two cores, load of the machine {before:.1f} before "
        f"and {os.getloadavg()[0]:.1f} after."
    )
    if ended.returncode:
        said += f" **It ended with exit code {ended.returncode}.**"
    results.add(step, f"{said}\n\n{step.shown(ended.stdout)}", is_good=ended.returncode == 0)


if __name__ == "__main__":
    sys.exit(main())
