"""One trial: jobs are submitted and solved while workers and the database are hit again and again; then all is counted."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy import Engine, func, select

from meshwright.app.base.documents import compact_json
from meshwright.app.base.errors import StoreError
from meshwright.app.base.settings import Settings
from meshwright.app.requests.digests import keyed_request
from meshwright.app.requests.plan_documents import plan_document
from meshwright.app.requests.resolve import NoFiles, resolve_request
from meshwright.app.service.engine import QueueClient, migrate_queue
from meshwright.app.service.planning import Call, PlanService
from meshwright.app.store.engine import open_engine, reading
from meshwright.app.store.jobs import ACTIVE, JobStatus
from meshwright.app.store.migrate import upgrade
from meshwright.app.store.principal import LOCAL
from meshwright.app.store.tables import jobs, plans
from tests.crash.databases import Database
from tests.support.fakes import feasible_plan
from tests.support.requests_given import training

TAKEOVER_S = 3
SLOTS = 2


@dataclass(frozen=True)
class Violence:
    """The settings of a trial: jobs submitted, workers kept running, rounds of blows and the longest pause before each."""

    jobs: int
    workers: int
    rounds: int
    pause_s: float = 2.0
    seed: int = 0
    finish_within_s: float = 1800.0


@dataclass
class Outcome:
    """The counts of a trial. ``takeovers``: attempts beyond the first; ``faults`` must be empty."""

    submitted: int = 0
    finished: int = 0
    stored: int = 0
    takeovers: int = 0
    seconds: float = 0.0
    blows: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


class Workers:
    """Worker processes, each replaced by a new one when it is killed."""

    def __init__(self, url: str, count: int):
        self._url = url
        self.processes = [self._new() for _ in range(count)]

    def _new(self) -> subprocess.Popen[bytes]:
        # Not "-m": every child would load the main module, and with it all of the worker.
        start = "from tests.crash.worker import main; main()"
        command = [sys.executable, "-c", start, self._url, str(SLOTS), str(TAKEOVER_S)]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def kill(self, index: int) -> None:
        """Kill one, and start another."""
        self.processes[index].kill()
        self.processes[index].wait()
        self.processes[index] = self._new()

    def freeze(self, index: int, seconds: float) -> None:
        """Stop one for so long."""
        self.processes[index].send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.processes[index].send_signal(signal.SIGCONT)

    def revive(self) -> None:
        """Replace those that ended by themselves."""
        for index, process in enumerate(self.processes):
            if process.poll() is not None:
                self.processes[index] = self._new()

    def stop(self) -> None:
        """Tell all to stop, and wait."""
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes:
            process.wait(30)


def run_trial(database: Database, violence: Violence, say: Callable[[str], None] = lambda line: None) -> Outcome:
    """Run a trial on an empty database and count."""
    engine = open_engine(database.url)
    upgrade(engine)
    migrate_queue(database.url)
    outcome, chance = Outcome(), random.Random(violence.seed)
    began_s = time.monotonic()
    workers = Workers(database.url, violence.workers)
    submitting = threading.Thread(target=_submit_all, args=(engine, database.url, violence.jobs, outcome))
    submitting.start()
    seen: dict[str, tuple[object, ...]] = {}
    try:
        for number in range(violence.rounds):
            # The blows are spread over the whole of the work.
            _wait_for_plans(engine, 1 + number * violence.jobs // violence.rounds, violence.finish_within_s)
            time.sleep(chance.uniform(0, violence.pause_s))
            _strike(database, workers, chance, outcome)
            workers.revive()
            _compare(engine, seen, outcome)
            say(f"round {number + 1}: {outcome.blows}, {len(seen)} plans stored")
        submitting.join()
        _wait_for_end(engine, violence.finish_within_s)
    finally:
        workers.stop()
    outcome.seconds = time.monotonic() - began_s
    _count(engine, violence, seen, outcome)
    engine.dispose()
    return outcome


def _submit_all(engine: Engine, url: str, count: int, outcome: Outcome) -> None:
    queue = QueueClient(engine)
    service = PlanService(engine, queue, Settings(url, max_waiting_jobs=10 * count))
    for seed in range(count):
        while True:
            try:
                service.submit(Call(LOCAL, training(search={"seed": seed}), urgency=seed % 8, idempotency_key=f"job-{seed}"))
                break
            except StoreError:
                time.sleep(0.2)
        outcome.submitted += 1
    queue.close()


def _strike(database: Database, workers: Workers, chance: random.Random, outcome: Outcome) -> None:
    index = chance.randrange(len(workers.processes))
    blow = chance.choice(["kill", "kill", "freeze", "restart" if database.restart else "kill"])
    outcome.blows[blow] = outcome.blows.get(blow, 0) + 1
    if blow == "kill":
        workers.kill(index)
    elif blow == "freeze":
        # Half of the frozen ones lose their jobs to others before they wake.
        workers.freeze(index, chance.uniform(0.5 * TAKEOVER_S, 2.5 * TAKEOVER_S))
    else:
        database.crash()


def _compare(engine: Engine, seen: dict[str, tuple[object, ...]], outcome: Outcome) -> None:
    """Every plan that was there before must be there as it was."""
    try:
        with reading(engine) as connection:
            now = {row.digest: tuple(row) for row in connection.execute(select(plans))}
    except StoreError:
        return
    outcome.faults += [f"plan {digest} changed or went" for digest, row in seen.items() if now.get(digest) != row]
    seen.update(now)


def _wait_for_plans(engine: Engine, count: int, within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        try:
            with reading(engine) as connection:
                if connection.execute(select(func.count()).select_from(plans)).scalar_one() >= count:
                    return
        except StoreError:
            pass
        time.sleep(0.1)


def _wait_for_end(engine: Engine, within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    left = 1
    while left and time.monotonic() < deadline_s:
        time.sleep(0.5)
        try:
            with reading(engine) as connection:
                active = [status.value for status in ACTIVE]
                left = connection.execute(select(func.count()).where(jobs.c.status.in_(active))).scalar_one()
        except StoreError:
            continue


def _count(engine: Engine, violence: Violence, seen: dict[str, tuple[object, ...]], outcome: Outcome) -> None:
    _compare(engine, seen, outcome)
    with reading(engine) as connection:
        rows = connection.execute(select(jobs.c.digest, jobs.c.status, jobs.c.attempt)).all()
        stored = connection.execute(select(plans.c.digest, plans.c.plan)).all()
    outcome.finished = sum(row.status == JobStatus.SUCCEEDED for row in rows)
    outcome.takeovers = sum(max(0, row.attempt - 1) for row in rows)
    outcome.stored = len(stored)
    expected = {}
    for seed in range(violence.jobs):
        key = keyed_request(resolve_request(training(search={"seed": seed}), files=NoFiles()))
        expected[key.digest] = compact_json(plan_document(feasible_plan(key.request)) | {"digest": key.digest})
    if len(rows) != violence.jobs:
        outcome.faults.append(f"{len(rows)} jobs for {violence.jobs} requests")
    outcome.faults += [f"job of {row.digest} is {row.status}" for row in rows if row.status != JobStatus.SUCCEEDED]
    if len(stored) != len({row.digest for row in stored}):
        outcome.faults.append("a plan is stored twice")
    outcome.faults += [f"plan {digest} is lost" for digest in expected.keys() - {row.digest for row in stored}]
    outcome.faults += [f"plan {row.digest} differs" for row in stored if expected.get(row.digest) != row.plan]
