"""One long job through many restarts of its worker: ``python -m tests.attacks.restarts DATABASE ORDERLY HARD``.

DATABASE is ``sqlite`` or ``postgresql``. The worker is told to stop (SIGTERM) as soon as it has begun the job, or killed
(SIGKILL) when its attempt has got on, in turns while there are both. Prints the job's row after each tenth and at its end.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import Engine, Row, select

from meshwright.app.base.settings import Settings
from meshwright.app.service.engine import QueueClient, migrate_queue
from meshwright.app.service.planning import Call, PlanService
from meshwright.app.service.sandbox import BEAT_S
from meshwright.app.store.engine import open_engine, reading
from meshwright.app.store.jobs import JobStatus
from meshwright.app.store.migrate import upgrade
from meshwright.app.store.principal import Principal, Scope
from meshwright.app.store.tables import jobs
from tests.crash.databases import postgresql_cluster, sqlite_file
from tests.support.requests_given import training

LOOK_S, WITHIN_S = 0.1, 300.0
TAKEOVER_S = 3
LONG, SHORT = "tests.attacks.long_worker", "tests.crash.worker"


def main() -> int:
    database, orderly, hard = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        opened = stack.enter_context(sqlite_file(folder) if database == "sqlite" else postgresql_cluster())
        engine = open_engine(opened.url)
        upgrade(engine)
        migrate_queue(opened.url)
        submit(engine, opened.url)
        blows = [blow for pair in zip([signal.SIGTERM] * 50, [signal.SIGKILL] * 50, strict=True) for blow in pair]
        blows = [*_first(blows, signal.SIGTERM, orderly), *_first(blows, signal.SIGKILL, hard)]
        blows.sort(key=lambda blow: blow[0])
        for number, (_, blow) in enumerate(blows, start=1):
            row = restart(engine, opened.url, blow)
            if number % 10 == 0:
                print(f"after {number} restarts: {row.status}, attempt {row.attempt}, hand-backs {row.hand_backs}", flush=True)
            if JobStatus(row.status).is_final:
                break
        row = finished(engine, opened.url)
        print(f"{number} restarts: {row.status}, attempt {row.attempt}, hand-backs {row.hand_backs}, problem {row.problem}")
        return 0 if row.status == JobStatus.SUCCEEDED.value else 1


def _first(blows: list[signal.Signals], kind: signal.Signals, count: int) -> list[tuple[int, signal.Signals]]:
    return [(place, blow) for place, blow in enumerate(blows) if blow is kind][:count]


def submit(engine: Engine, url: str) -> None:
    """Submit the one job."""
    queue = QueueClient(engine)
    service = PlanService(engine, queue, Settings(url))
    service.submit(Call(Principal("acme", "key:a", frozenset(Scope)), training(), urgency=3))
    queue.close()


def restart(engine: Engine, url: str, blow: signal.Signals) -> Row[tuple[object, ...]]:
    """Run a worker until it has begun the job, end it so, and return the job's row."""
    before = the_job(engine).attempt
    process = worker(url, LONG)
    try:
        wait_for(engine, lambda row: row.attempt > before or JobStatus(row.status).is_final, process)
        if blow is signal.SIGKILL:
            # A little longer than what makes an attempt count as one that got on: its next beat writes it down.
            time.sleep(TAKEOVER_S + 2 * BEAT_S)
    finally:
        process.send_signal(blow)
        process.wait(60)
    return the_job(engine)


def finished(engine: Engine, url: str) -> Row[tuple[object, ...]]:
    """Let a worker finish the job."""
    process = worker(url, SHORT)
    try:
        return wait_for(engine, lambda row: JobStatus(row.status).is_final, process)
    finally:
        process.terminate()
        process.wait(60)


def worker(url: str, module: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", f"from {module} import main; main()", url, "1", str(TAKEOVER_S)])


def the_job(engine: Engine) -> Row[tuple[object, ...]]:
    columns = (jobs.c.status, jobs.c.attempt, jobs.c.hand_backs, jobs.c.problem)
    with reading(engine) as connection:
        return connection.execute(select(*columns)).one()


def wait_for(engine: Engine, is_so: object, process: subprocess.Popen[bytes]) -> Row[tuple[object, ...]]:
    """Wait until the job's row is so; its worker must not end by itself meanwhile."""
    until_s = time.monotonic() + WITHIN_S
    while time.monotonic() < until_s:
        row = the_job(engine)
        if is_so(row):  # type: ignore[operator]
            return row
        if process.poll() is not None:
            raise SystemExit(f"the worker ended by itself, exit code {process.returncode}: {row}")
        time.sleep(LOOK_S)
    raise SystemExit(f"the job did not come on within {WITHIN_S:g} s: {the_job(engine)}")


if __name__ == "__main__":
    raise SystemExit(main())
