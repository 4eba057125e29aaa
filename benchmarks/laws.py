"""Holds the laws of `tests/laws` against 20,000 draws.

Run from the root of the repository: python -m benchmarks.laws [--draws N] [LAW ...]
"""

from __future__ import annotations

import argparse
import time

from tests.laws.table import LAWS

DRAWS = 20_000
"""Draws of all laws together, shared as their own numbers of draws in the slow tier are."""

FIRST = 3
"""Names the draws: others than those of the tests."""


def main() -> None:
    """Print a row a law: draws, seconds of processor time, or the first draw that breaks it."""
    parser = argparse.ArgumentParser(description="Holds the laws against many draws.")
    parser.add_argument("names", nargs="*", choices=[*LAWS, []], help="the laws; all unless named", metavar="LAW")
    parser.add_argument("--draws", type=int, default=DRAWS, help="draws of all laws together")
    given = parser.parse_args()
    names = given.names or list(LAWS)
    per_draw = given.draws / sum(LAWS[name].many for name in names)
    for name in names:
        draws, began_s = round(LAWS[name].many * per_draw), time.process_time()
        LAWS[name].hold(draws, first=FIRST)
        print(f"{name}: {draws:,} draws hold, {time.process_time() - began_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
