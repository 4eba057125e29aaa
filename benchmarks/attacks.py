"""Attacks on a running service, and what others see: ``python -m benchmarks.attacks [sqlite] [postgresql] [--only WORD ...]``.

Starts the real service over a new SQLite file, and over a PostgreSQL server of its own (its programs and root are needed), and
carries out each attack of ``attack_acts.ATTACKS``, loopback only, while a process asks for ``/healthz`` ten times a second and
for another tenant's stored plan twenty times a second. Prints a table for ``docs/benchmarks-service.md``. Fails where, but for
what an attack says of itself, ``/healthz`` takes over a second, the stored plan over 250 ms for one in a hundred, or the
memory of the service is not within 10% of what it was half a minute after. What the service waited for a processor says how
much of a late answer other work of the machine made. The whole takes about ten minutes and ends by itself.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

from benchmarks.attack_acts import ATTACKS, Attack, large_bodies
from benchmarks.attacked import (
    HEALTH_LIMIT_S,
    MEMORY_LIMIT,
    PLAN_LIMIT_S,
    Arena,
    arena,
    memory_back,
    watching,
)
from tests.crash.databases import postgresql_cluster, sqlite_file

MIB = 2**20
QUIET_S = 15.0
HEAD = (
    "| number | attack | limit | came of it | `/healthz`, slowest | stored plan, 99% within | memory before, after "
    "| processor used, waited for |\n|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("databases", nargs="*", help="sqlite, postgresql; both unless named")
    parser.add_argument("--only", nargs="*", default=[], help="attacks whose act's name has one of these words")
    given = parser.parse_args()
    given.databases = given.databases or ["sqlite", "postgresql"]
    if unknown := set(given.databases) - {"sqlite", "postgresql"}:
        parser.error(f"unknown database: {', '.join(unknown)}")
    wanted = [attack for attack in ATTACKS if not given.only or any(word in attack.act.__name__ for word in given.only)]
    failures: list[str] = []
    for database in given.databases:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            opened = sqlite_file(folder) if database == "sqlite" else postgresql_cluster()
            ready = stack.enter_context(arena(folder, stack.enter_context(opened).url))
            print(f"\n{database}\n\n{HEAD}", flush=True)
            # What a process takes once (caches, threads, the allocator's arenas) is not what an attack takes.
            large_bodies(ready)
            failures += carried_out(ready, Attack(0, "none", "", quiet))
            for attack in wanted:
                if database.startswith(attack.needs):
                    failures += carried_out(ready, attack)
    print("\n" + ("\n".join(failures) or "every limit held"))
    return 1 if failures else 0


def quiet(ready: Arena) -> str:
    """Do nothing: what others see without an attack, on this machine at this moment."""
    time.sleep(QUIET_S)
    return f"load of the machine {os.getloadavg()[0]:.1f}"


def carried_out(ready: Arena, attack: Attack) -> list[str]:
    """Carry an attack out and print its line; return what did not hold."""
    failures = []
    before, (used_s, waited_s) = ready.service.resident_bytes(), ready.service.processor_s()
    with watching(ready) as others:
        try:
            said = attack.act(ready)
        except (AssertionError, KeyError, httpx.HTTPError) as error:
            said = f"**{type(error).__name__}: {error}**"
            failures.append(f"{attack.name}: {error}")
    after_used_s, after_waited_s = ready.service.processor_s()
    processor = f"{after_used_s - used_s:.1f}, {after_waited_s - waited_s:.1f} s"
    after, back_s = memory_back(ready, before)
    health, plan = others.health, others.plan
    if set(health.statuses) != {200} or health.slowest_s() > HEALTH_LIMIT_S:
        failures.append(f"{attack.name}: /healthz {health.statuses}, slowest {health.slowest_s():.2f} s")
    plans = f"{plan.p99_s() * 1e3:.0f} ms (of {len(plan.seconds)})"
    if attack.stops_plans:
        plans = f"{dict(plan.statuses)}, slowest {plan.slowest_s():.1f} s"
    elif set(plan.statuses) != {200} or plan.p99_s() > PLAN_LIMIT_S:
        failures.append(f"{attack.name}: the stored plan {plan.statuses}, p99 {plan.p99_s() * 1e3:.0f} ms")
    if after > MEMORY_LIMIT * before:
        failures.append(f"{attack.name}: {before / MIB:.0f} MiB before, {after / MIB:.0f} MiB {back_s:.0f} s after")
    memory = f"{before / MIB:.0f}, {after / MIB:.0f} MiB after {back_s:.0f} s"
    slowest = f"{health.slowest_s() * 1e3:.0f} ms"
    cells = (str(attack.number or ""), attack.name, attack.limit, said, slowest, plans, memory, processor)
    print("| " + " | ".join(cells) + " |", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
