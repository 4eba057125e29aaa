"""A worker process: takes jobs from the queue and solves them in children, until it is told to stop."""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from meshwright.app.errors import StoreError
from meshwright.app.jobs.desk import WORKER_BEAT_S, JobDesk
from meshwright.app.jobs.engine import QueueClient, QueueConsumer
from meshwright.app.jobs.reaper import Reaper
from meshwright.app.jobs.runner import JobRunner
from meshwright.app.replans.batch import BatchStarter, Settler
from meshwright.app.replans.webhook import WebhookSender, webhook_settings
from meshwright.app.settings import Settings
from meshwright.app.solving import Solver
from meshwright.app.version import installed_version
from meshwright.app.worker.retention import LOOK_S, Retention

log = logging.getLogger(__name__)

WEBHOOK_LOOK_S = 1.0


class Worker:
    """One worker of a process."""

    def __init__(self, engine: Engine, settings: Settings, solver: Solver, *, name: str | None = None):
        self.name = name or default_name()
        self._settings, self._solver = settings, solver
        self._desk = JobDesk(engine, dict(settings.tenant_weights))
        self._queue = QueueClient(engine)
        self._runner = JobRunner(
            self._desk,
            solver,
            worker=self.name,
            then=Settler(engine),
            start_batch=BatchStarter(engine, self._queue),
            settled_s=settings.takeover_after_s,
        )
        self._webhooks = WebhookSender(engine, webhook_settings(settings))
        self._reaper = Reaper(engine, self._queue, silent_s=settings.takeover_after_s)
        retention = Retention(
            engine,
            self._queue,
            keep_jobs=timedelta(days=settings.keep_jobs_days),
            keep_audit=timedelta(days=settings.keep_audit_days),
        )
        self._consumer = QueueConsumer(settings.database_url, name=self.name, slots=settings.max_solves, run_job=self._run)
        self._running: set[str] = set()
        self._lock = threading.Lock()
        self._draining = threading.Event()
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._regularly, args=(WORKER_BEAT_S, self._beat), name="worker-beat", daemon=True),
            threading.Thread(
                target=self._regularly, args=(settings.takeover_after_s / 3, self._reaper), name="reaper", daemon=True
            ),
            threading.Thread(target=self._regularly, args=(LOOK_S, retention), name="retention", daemon=True),
            threading.Thread(target=self._regularly, args=(WEBHOOK_LOOK_S, self._webhooks), name="webhooks", daemon=True),
        ]

    def start(self) -> None:
        """Begin to take jobs."""
        self._consumer.start()
        for thread in self._threads:
            thread.start()
        log.info("worker started", extra={"worker": self.name, "slots": self._settings.max_solves})

    def stop(self) -> None:
        """Take no more jobs, let those that run finish for ``drain_s``, give the rest back to the queue."""
        log.info("worker drains", extra={"worker": self.name, "running": len(self._running)})
        self._draining.set()
        self._consumer.stop(finish_within_s=self._settings.drain_s if self._running else 0)
        self._over.set()
        self._webhooks.stop()
        # In this order: what is given back belongs to the next worker before its solve ends here.
        self._give_back()
        self._runner.stop()
        self._solver.close()
        self._try(lambda: self._desk.worker_gone(self.name))
        self._queue.close()

    def _run(self, workflow: str) -> None:
        with self._lock:
            self._running.add(workflow)
        try:
            self._runner(workflow)
        finally:
            with self._lock:
                self._running.discard(workflow)

    def _give_back(self) -> None:
        with self._lock:
            left = list(self._running)
        if left:
            log.warning("jobs go back to the queue", extra={"jobs": len(left)})
            self._try(lambda: self._desk.note_hand_back(left))
            self._try(lambda: self._queue.resume(left))

    def _beat(self) -> None:
        self._desk.worker_beat(
            self.name, version=installed_version(), slots=self._settings.max_solves, draining=self._draining.is_set()
        )

    def _regularly(self, every_s: float, call: Callable[[], object]) -> None:
        while not self._over.is_set():
            self._try(call)
            self._over.wait(every_s)

    def _try(self, call: Callable[[], object]) -> None:
        """Call; what the database can't do now, it will be asked again."""
        try:
            call()
        except (StoreError, SQLAlchemyError) as error:
            log.warning("the database does not answer: %s", error)
        except Exception:
            # A thread that ends here is missed by nobody until a job is lost: it goes on.
            log.exception("a duty of the worker failed; it will be tried again")


def default_name() -> str:
    """A name that no other worker has or had."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
