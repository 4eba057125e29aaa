"""CPU time of planning each example from nothing: a fresh process, no stored plan, compiled kernels as a second run finds them.

    python -m benchmarks.cold_plans [EXAMPLE.yaml ...]

Prints CPU seconds of the whole process (start and imports included), the same in units of the first example, and the
certificate. The first run after an installation also compiles the inner loops once; ``--first`` measures that, with an
empty compile cache.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", nargs="*", type=Path, default=sorted(EXAMPLES.glob("*.yaml")))
    parser.add_argument("--first", action="store_true", help="start from an empty compile cache")
    arguments = parser.parse_args()
    unit_s = None
    print(f"{'example':36} {'CPU s':>7} {'ratio':>6}  {'status':9} {'gap':>6} {'candidates':>10} {'solved':>6}")
    for example in arguments.examples:
        cpu_s, plan = cold_plan(example, empty_cache=arguments.first)
        unit_s = unit_s or cpu_s
        certificate, search = plan["certificate"], plan["search"]
        gap = "-" if certificate["gap"] is None else f"{certificate['gap']:.2%}"
        print(
            f"{example.stem:36} {cpu_s:7.2f} {cpu_s / unit_s:6.2f}  {certificate['status']:9} {gap:>6} "
            f"{search['candidates']:>10} {search['evaluated']:>6}"
        )


def cold_plan(example: Path, *, empty_cache: bool) -> tuple[float, dict[str, dict[str, float]]]:
    """CPU seconds of one ``meshwright plan`` process, and its plan."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ) | ({"NUMBA_CACHE_DIR": folder} if empty_cache else {})
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                "from meshwright.app.cli.main import main; main()",
                "plan",
                str(example),
                "--json",
                "--no-store",
            ],
            capture_output=True,
            check=False,
            env=environment,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode > 1:
        sys.exit(f"{example}: exit {done.returncode}: {done.stderr.decode()}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s, json.loads(done.stdout)


if __name__ == "__main__":
    main()
