"""Holds the laws of `tests/laws` against 20,000 draws, an hour of one core.

Run from the root of the repository: python -m benchmarks.laws [--draws N] [LAW ...]
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

import pytest

from tests.laws.law import Law
from tests.laws.table import LAWS

FIRST = 3
"""Names the draws: others than those of the tests."""


def main() -> None:
    """Print a row a law, and the draw that breaks it; the status is 1 if one is broken."""
    every = sum(law.most for law in LAWS.values())
    parser = argparse.ArgumentParser(description="Holds the laws against many draws.")
    parser.add_argument("names", nargs="*", choices=[*LAWS, []], help="the laws; all unless named", metavar="LAW")
    parser.add_argument("--draws", type=int, default=every, help=f"draws of all laws together, {every:,} unless given")
    given = parser.parse_args()
    # What takes least time first: most of what breaks is seen within minutes.
    names = sorted(given.names or LAWS, key=lambda name: LAWS[name].most * LAWS[name].draw_s)
    held = [holds(name, LAWS[name], -(-LAWS[name].most * given.draws // every)) for name in names]
    sys.exit(0 if all(held) else 1)


def holds(name: str, law: Law, draws: int) -> bool:
    """Print how many draws of a law hold, or the one that breaks it; return which."""
    began_s = time.process_time()
    try:
        drawn = law.hold(draws, first=FIRST)
    except (Exception, pytest.fail.Exception) as error:
        print(f"{name}: BROKEN within {draws:,} draws, {time.process_time() - began_s:.0f} s", flush=True)
        traceback.print_exception(error, limit=-2, file=sys.stdout)
        return False
    print(f"{name}: {drawn:,} draws hold, {time.process_time() - began_s:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    main()
