"""Deleting what has been kept long enough: finished jobs, re-plans, idempotency keys, and entries of the audit log.

Plans and what was measured stay: plans are what the service is for, and calibrations and runs can't be changed.

Every worker looks once in an hour. Rows are looked through from the oldest on, a few hundred in a transaction, and the look
ends at the first that are young enough: it costs as much as there is to delete. The database's clock says how old a row is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Engine, Table, delete, select

from meshwright.app.db.dialects import in_utc, now_s
from meshwright.app.db.engine import reading, writing
from meshwright.app.db.tables.fleet import replan_items, replans
from meshwright.app.db.tables.jobs import idempotency_keys, jobs
from meshwright.app.db.tables.security import audit
from meshwright.app.jobs.engine import QueueClient
from meshwright.app.jobs.job import ACTIVE
from meshwright.app.replans.repository import WEBHOOK_PENDING, WEBHOOK_SENDING

log = logging.getLogger(__name__)

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
