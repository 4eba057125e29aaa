"""Three days of a service in some minutes: ``python -m benchmarks.soak [sqlite] [postgresql] [--hours N] [--hour-s SECONDS]``.

Runs the real service and a real worker whose solves are quick, for N "hours" of some seconds each. In each, new requests of a
registered cluster are planned, stored plans and lists are read, and a measured run is reported; every twelve hours the cluster
changes and all that was asked of it is planned again, and a calibration is added. Jobs and re-plans are kept for twelve such
hours, the audit log for 24, by the code that a worker runs each real hour. Prints every twelve hours the resident memory of
both processes, the size of the database and the rows of its tables.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Engine, inspect, text

from benchmarks.service_process import MESHWRIGHT, running_process
from meshwright.app.service.engine import QueueClient
from meshwright.app.service.worker import Retention
from meshwright.app.store.engine import is_sqlite, open_engine, reading
from tests.crash.databases import postgresql_cluster, sqlite_file
from tests.integration.calibrations.service import fitted
from tests.support.requests_given import training

REQUESTS, READS = 6, 40
EVERY_HOURS, KEEP_JOBS_HOURS, KEEP_AUDIT_HOURS = 12, 12, 24
QUEUE_TABLE = "workflow_status"
SHOWN = (
    "jobs",
    "replans",
    "replan_items",
    "idempotency_keys",
    "audit",
    "plans",
    "questions",
    "answers",
    "runs",
    "calibrations",
)
WITHIN_S = 120.0
MIB = 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("databases", nargs="*", help="sqlite, postgresql; both unless named")
    parser.add_argument("--hours", type=int, default=72)
    parser.add_argument("--hour-s", type=float, default=4.0, help="least seconds that an hour takes")
    given = parser.parse_args()
    for database in given.databases or ("sqlite", "postgresql"):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            # As often as an hour of real time has sixty looks.
            opened = sqlite_file(folder) if database == "sqlite" else postgresql_cluster("-c autovacuum_naptime=1s")
            print(f"\n{database}", flush=True)
            soak(folder, stack.enter_context(opened).url, given.hours, given.hour_s)
    return 0


def soak(folder: Path, url: str, hours: int, hour_s: float) -> None:
    """Run a service over a database for so many hours."""
    subprocess.run([*MESHWRIGHT, "migrate"], env=os.environ | {"MESHWRIGHT_DATABASE_URL": url}, check=True, capture_output=True)
    calibration = dict(fitted().document)
    engine = open_engine(url)
    queue = QueueClient(engine)
    keep_jobs, keep_audit = (timedelta(seconds=kept * hour_s) for kept in (KEEP_JOBS_HOURS, KEEP_AUDIT_HOURS))
    retention = Retention(engine, queue, keep_jobs=keep_jobs, keep_audit=keep_audit)
    with (
        running_process(folder, "--workers", "0", MESHWRIGHT_DATABASE_URL=url) as service,
        quick_worker(url) as worker,
        httpx.Client(base_url=service.url, timeout=WITHIN_S) as client,
    ):
        deleted, began_s = 0, time.monotonic()
        for hour in range(hours):
            an_hour(client, hour, calibration)
            deleted += retention()
            time.sleep(max(0.0, began_s + (hour + 1) * hour_s - time.monotonic()))
            if (hour + 1) % EVERY_HOURS == 0:
                memory = f"service {resident_mib(service.process.pid):.0f} MiB, worker {resident_mib(worker.pid):.0f} MiB"
                rows = ", ".join(f"{name} {count}" for name, count in counts(engine).items())
                size = f"database {size_mib(engine):.1f} MiB, {deleted} rows deleted so far"
                print(f"hour {hour + 1} ({time.monotonic() - began_s:.0f} s): {memory}; {size}; {rows}", flush=True)
    queue.close()
    engine.dispose()


def an_hour(client: httpx.Client, hour: int, calibration: dict[str, Any]) -> None:
    """Do what happens in an hour, and wait until no job waits."""
    if hour % EVERY_HOURS == 0:
        nodes = 2 + hour // EVERY_HOURS % 2
        cluster = {"catalog": "dgx-h100", "nodes": nodes}
        client.put("/v1/clusters/prod", params={"replan": "start"}, json=cluster).raise_for_status()
        client.post("/v1/calibrations", json=calibration | {"software": [f"of hour {hour}"]}).raise_for_status()
    for number in range(REQUESTS):
        request = training(cluster={"name": "prod"}, search={"seed": hour * REQUESTS + number})
        headers = {"prefer": "respond-async", "idempotency-key": f"{hour}-{number}"}
        client.post("/v1/plans", json=request, headers=headers).raise_for_status()
    until_s = time.monotonic() + WITHIN_S
    while any((waiting := client.get("/readyz").raise_for_status().json()["queue"])[state] for state in ("queued", "running")):
        assert time.monotonic() < until_s, f"jobs wait: {waiting}"
        time.sleep(0.1)
    plans: list[dict[str, Any]] = client.get("/v1/plans", params={"limit": 20}).raise_for_status().json()["plans"]
    for number in range(READS):
        client.get(f"/v1/plans/{plans[number % len(plans)]['digest']}").raise_for_status()
    plan = client.get(f"/v1/plans/{plans[0]['digest']}").raise_for_status().json()
    step_time_s = plan["predicted"]["step_time_s"] * (1.0 + hour / 1000)
    reported = client.post("/v1/runs", json={"plan": plan["digest"], "step_time_s": step_time_s, "label": f"hour {hour}"})
    assert reported.is_success, reported.text


@contextmanager
def quick_worker(url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process of two slots whose solves are quick."""
    process = subprocess.Popen([sys.executable, "-c", "from tests.crash.worker import main; main()", url, "2", "15"])
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def counts(engine: Engine) -> dict[str, int]:
    """Return the rows of the tables that grow."""
    schema = None if is_sqlite(engine) else "dbos"
    names = [*SHOWN, QUEUE_TABLE if schema is None else f"{schema}.{QUEUE_TABLE}"]
    assert inspect(engine).has_table(QUEUE_TABLE, schema=schema)
    with reading(engine) as connection:
        return {name: int(connection.execute(text(f"SELECT count(*) FROM {name}")).scalar_one()) for name in names}


def size_mib(engine: Engine) -> float:
    """Return the size of the database, SQLite's write-ahead log left out."""
    query = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
    if not is_sqlite(engine):
        query = "SELECT pg_database_size(current_database())"
    with reading(engine) as connection:
        return float(connection.execute(text(query)).scalar_one()) / MIB


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process, its children left out (Linux)."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


if __name__ == "__main__":
    sys.exit(main())
