"""The time that connections of PostgreSQL are held: ``python -m benchmarks.held_connections [--jobs N]``.

What ``meshwright.app.store.engine.HELD_S`` must exceed by far: a connection that is held for longer counts as lost. Submits N
jobs from eight threads, lists them, and deletes them as retention does, over a PostgreSQL server of its own (its programs and
root are needed), and prints for each how long connections were held. Run it beside other work: how long a loaded machine takes
is what matters.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine, event, update

from meshwright.app.base.settings import Settings
from meshwright.app.service.engine import QueueClient, migrate_queue
from meshwright.app.service.planning import Call, PlanService
from meshwright.app.service.worker import Retention
from meshwright.app.store.engine import HELD_S, open_engine, writing
from meshwright.app.store.jobs import JobStatus
from meshwright.app.store.migrate import upgrade
from meshwright.app.store.principal import Principal, Scope
from meshwright.app.store.tables import jobs
from tests.crash.databases import postgresql_cluster
from tests.support.requests_given import training

THREADS = 8
OLD = timedelta(days=365)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    given = parser.parse_args()
    with postgresql_cluster() as database:
        engine = open_engine(database.url)
        upgrade(engine)
        migrate_queue(database.url)
        queue = QueueClient(engine)
        with noting(engine, f"{given.jobs} submissions from {THREADS} threads"):
            submit(engine, queue, database.url, given.jobs)
        with noting(engine, "all of them ended by one statement"), writing(engine) as connection:
            old = datetime.now(UTC) - OLD
            ended = {"status": JobStatus.CANCELLED.value, "created_at": old, "finished_at": old, "active_digest": None}
            connection.execute(update(jobs).values(ended))
        with noting(engine, "retention"):
            deleted = Retention(engine, queue, keep_jobs=OLD / 2, keep_audit=OLD)()
        queue.close()
        engine.dispose()
    print(f"{deleted} rows were deleted; the limit is {HELD_S:g} s")
    return 0


def submit(engine: Engine, queue: QueueClient, url: str, count: int) -> None:
    """Submit so many jobs, each of a request of its own."""
    service = PlanService(engine, queue, Settings(url, max_waiting_jobs=count))
    caller = Principal("acme", "key:a", frozenset(Scope))

    def work(first: int) -> None:
        for seed in range(first, count, THREADS):
            service.submit(Call(caller, training(search={"seed": seed}), urgency=3))

    threads = [threading.Thread(target=work, args=(first,)) for first in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def noting(engine: Engine, what: str) -> Iterator[None]:
    """Print how long the engine's connections are held within the block."""
    begun: dict[Any, float] = {}
    held_s: list[float] = []

    def begin(connection: Any, record: object, proxy: object) -> None:
        begun[connection] = time.monotonic()

    def end(connection: Any, record: object) -> None:
        if connection in begun:
            held_s.append(time.monotonic() - begun.pop(connection))

    event.listen(engine, "checkout", begin)
    event.listen(engine, "checkin", end)
    began_s = time.monotonic()
    try:
        yield
    finally:
        event.remove(engine, "checkout", begin)
        event.remove(engine, "checkin", end)
    p99_s = statistics.quantiles(held_s, n=100, method="inclusive")[98] if len(held_s) > 1 else held_s[0]
    print(
        f"{what}: {len(held_s)} times in {time.monotonic() - began_s:.0f} s, median {statistics.median(held_s):.3f} s, "
        f"99% within {p99_s:.3f} s, longest {max(held_s):.3f} s; load of the machine {os.getloadavg()[0]:.0f}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
