"""A worker process: takes jobs from the queue and solves them in children, until it is told to stop."""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Engine, Table, delete, select
from sqlalchemy.exc import SQLAlchemyError

from meshwright.app.base.errors import StoreError
from meshwright.app.base.settings import Settings
from meshwright.app.base.solving import Solver
from meshwright.app.base.version import installed_version
from meshwright.app.service.batch import BatchStarter, Settler
from meshwright.app.service.desk import WORKER_BEAT_S, JobDesk, SilentJob
from meshwright.app.service.engine import QueueClient, QueueConsumer, WorkflowState
from meshwright.app.service.runner import JobRunner
from meshwright.app.service.webhook import WebhookSender, webhook_settings
from meshwright.app.store.engine import reading, writing
from meshwright.app.store.jobs import ACTIVE
from meshwright.app.store.replans import WEBHOOK_PENDING, WEBHOOK_SENDING
from meshwright.app.store.statements import in_utc, now_s
from meshwright.app.store.tables import audit, idempotency_keys, jobs, replan_items, replans

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
            # A job that is running and silent is taken over: until it is queued again it stays so.
            self._try(lambda: self._queue.resume(left))
            self._try(lambda: self._desk.show_waiting(left, self.name))

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


# Deleting what has been kept long enough: finished jobs, re-plans, idempotency keys, and entries of the audit log.
#
# Plans and what was measured stay: plans are what the service is for, and calibrations and runs can't be changed.
#
# Every worker looks once in an hour. Rows are looked through from the oldest on, a few hundred in a transaction, and the look
# ends at the first that are young enough: it costs as much as there is to delete. The database's clock says how old a row is.

LOOK_S = 3600.0
BATCH = 500
_ACTIVE = {status.value for status in ACTIVE}
_CALLING = {WEBHOOK_PENDING, WEBHOOK_SENDING}
_LOOKED_AT = frozenset({"row", "id", "created_at", "at", "finished_at", "status", "workflow", "webhook_status"})

OldRow = dict[str, Any]
Rows = list[OldRow]


class Retention:
    """Looks for what is older than it is kept, once a call.

    keep_jobs    time for which jobs, re-plans and idempotency keys are kept after their end
    keep_audit   time for which entries of the audit log are
    """

    def __init__(self, engine: Engine, queue: QueueClient, *, keep_jobs: timedelta, keep_audit: timedelta):
        self._engine, self._queue, self._keep_jobs, self._keep_audit = engine, queue, keep_jobs, keep_audit

    def __call__(self) -> int:
        """Delete it; return the number of rows. Raises StoreError when the database can't be asked."""
        with reading(self._engine) as connection:
            now = datetime.fromtimestamp(connection.execute(select(now_s(connection))).scalar_one(), UTC)
        ended, entered = now - self._keep_jobs, now - self._keep_audit

        def has_ended(row: OldRow) -> bool:
            return row["finished_at"] is not None and row["finished_at"] < ended

        def is_final(row: OldRow) -> bool:
            return row["status"] not in _ACTIVE and has_ended(row)

        def is_told(row: OldRow) -> bool:
            return row["webhook_status"] not in _CALLING and has_ended(row)

        deleted = self._look(jobs, "created_at", ended, is_final, self._end_jobs)
        deleted += self._look(replans, "created_at", ended, is_told, self._end_replans)
        deleted += self._look(idempotency_keys, "created_at", ended, _always, partial(self._end, idempotency_keys))
        deleted += self._look(audit, "at", entered, _always, partial(self._end, audit))
        if deleted:
            log.info("old rows deleted", extra={"rows": deleted})
        return deleted

    def _look(
        self,
        table: Table,
        moment: str,
        before: datetime,
        is_over: Callable[[OldRow], bool],
        end: Callable[[Rows], None],
    ) -> int:
        """Delete rows of a table that came before a moment and are over, batch by batch; return how many."""
        place = table.c.row if "row" in table.c else table.c.id
        wanted = [column for column in table.c if column.name in _LOOKED_AT]
        deleted, last = 0, 0
        while True:
            query = select(*wanted).where(place > last).order_by(place).limit(BATCH)
            with reading(self._engine) as connection:
                rows = [in_utc(row) for row in connection.execute(query).mappings()]
            old = [row for row in rows if row[moment] < before]
            over = [row for row in old if is_over(row)]
            if over:
                end(over)
                deleted += len(over)
            if len(old) < BATCH:
                return deleted
            last = rows[-1][place.name]

    def _end_jobs(self, rows: Rows) -> None:
        # In this order: a job that is final needs no place in the queue, and a second look finds what the first left.
        self._queue.forget([row["workflow"] for row in rows])
        with writing(self._engine) as connection:
            connection.execute(delete(jobs).where(jobs.c.row.in_([row["row"] for row in rows])))

    def _end_replans(self, rows: Rows) -> None:
        ids = [row["id"] for row in rows]
        with writing(self._engine) as connection:
            connection.execute(delete(replan_items).where(replan_items.c.replan.in_(ids)))
            connection.execute(delete(replans).where(replans.c.id.in_(ids)))

    def _end(self, table: Table, rows: Rows) -> None:
        with writing(self._engine) as connection:
            connection.execute(delete(table).where(table.c.id.in_([row["id"] for row in rows])))


def _always(row: OldRow) -> bool:
    return True


# Finding jobs that nobody works on, and giving them back to the queue.
#
# A running job beats every second. One that has been silent for long belongs to a worker that is frozen, cut off or gone,
# or to a thread that died: its workflow is resumed, so that another worker takes it. The old worker, should it come back,
# finds that its attempt is over. A queued job whose workflow is over or was never there is queued again.
# Every worker runs a reaper; the database lets one of them deal with each job.

LOST_AT_ONCE = 500


class Reaper:
    """Looks through the silent jobs, once a call."""

    def __init__(self, engine: Engine, queue: QueueClient, *, silent_s: float):
        self._engine, self._queue, self._silent_s = engine, queue, silent_s
        self._desk = JobDesk(engine)

    def __call__(self) -> int:
        """Give back what nobody works on; how many jobs. Raises StoreError when the database can't be asked."""
        silent = self._desk.silent(for_s=self._silent_s, limit=LOST_AT_ONCE)
        if not silent:
            return 0
        states = self._queue.states([job.workflow for job in silent])
        waiting = [job for job in silent if states[job.workflow] is WorkflowState.WAITING]
        if waiting:
            self._desk.note_waiting(waiting, for_s=self._silent_s)
        left = (job for job in silent if states[job.workflow] is not WorkflowState.WAITING)
        return sum(self._give_back(job, states[job.workflow]) for job in left)

    def _give_back(self, job: SilentJob, state: WorkflowState) -> bool:
        """Give a silent job back to the queue. Return False where another reaper does."""
        workflow = uuid.uuid4().hex if state is WorkflowState.OVER else None
        with writing(self._engine) as connection:
            if not self._desk.claim_silent(connection, job, workflow=workflow):
                return False
            if workflow is not None:
                self._queue.enqueue(connection, workflow=workflow, job_id=job.id, urgency=job.urgency)
        if state is WorkflowState.TAKEN:
            self._queue.resume([job.workflow])
        log.warning("job given back to the queue", extra={"job": job.id, "workflow_was": state.value})
        return True
