"""The REST service on a real socket, in a thread of the test process, with a worker that needs no queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx
import uvicorn
from fastapi import FastAPI
from sqlalchemy import Connection, select

from meshwright.app.base.errors import StoreError
from meshwright.app.base.settings import Settings
from meshwright.app.base.solving import Solver
from meshwright.app.service.batch import BatchStarter, Settler
from meshwright.app.service.desk import JobDesk
from meshwright.app.service.runner import JobRunner, WorkerStoppedError
from meshwright.app.store.engine import open_engine, reading
from meshwright.app.store.jobs import JobStatus
from meshwright.app.store.tables import jobs
from meshwright.app.web.main import create_app

OFTEN_S, SELDOM_S = 0.01, 0.1
"""A worker waits this many seconds before it looks for jobs again: while one was just asked for, and else."""
SOON_S = 1.0
"""A job that was asked for is in its table within this, or is found a little later."""


class NoQueue:
    """A queue that keeps nothing: the test's worker finds jobs in their table."""

    asked_at_s = 0.0
    """The time when any of them was last asked to keep a job, on the monotonic clock."""

    def enqueue(self, connection: Connection, *, workflow: str, job_id: str, urgency: int) -> None:
        NoQueue.asked_at_s = time.monotonic()

    def cancel(self, workflows: Sequence[str]) -> None:
        pass

    def close(self) -> None:
        pass


class LocalWorker:
    """Runs queued jobs in threads of this process, the most urgent first."""

    def __init__(self, settings: Settings, solver: Solver):
        self._engine = open_engine(settings.database_url)
        self._runner = JobRunner(
            JobDesk(self._engine),
            solver,
            worker="local",
            then=Settler(self._engine),
            start_batch=BatchStarter(self._engine, NoQueue()),
        )
        self._solver = solver
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._taken: set[str] = set()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(settings.max_solves)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._runner.stop()
        self._solver.close()
        for thread in self._threads:
            thread.join(5)
        self._engine.dispose()

    def _work(self) -> None:
        while not self._stop.wait(OFTEN_S if time.monotonic() < NoQueue.asked_at_s + SOON_S else SELDOM_S):
            job = self._next()
            if job is not None:
                try:
                    self._runner(job)
                except WorkerStoppedError:
                    return

    def _next(self) -> str | None:
        queued = select(jobs.c.workflow).where(jobs.c.status == JobStatus.QUEUED.value).order_by(jobs.c.urgency, jobs.c.row)
        with self._lock:
            try:
                with reading(self._engine) as connection:
                    waiting = [job for job in connection.execute(queued).scalars() if job not in self._taken]
            except StoreError:
                return None
            self._taken.update(waiting[:1])
            return waiting[0] if waiting else None


@contextmanager
def running_service(settings: Settings, solver: Solver | None, app: FastAPI | None = None) -> Iterator[httpx.Client]:
    """A client, which waits for plans, of a service that runs until the block ends; its jobs are solved by ``solver``."""
    app = app or create_app(settings, lambda engine: NoQueue())
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    worker = None
    try:
        while not server.started:
            assert thread.is_alive(), "the service did not start"
            time.sleep(0.005)
        worker = None if solver is None else LocalWorker(settings, solver)
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0, headers={"prefer": "wait=50"}) as client:
            yield client
    finally:
        if worker is not None:
            worker.stop()
        server.should_exit = True
        thread.join(30)
