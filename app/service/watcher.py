"""Waiting for jobs to change: one query for all watched jobs of this process, however many clients watch."""

from __future__ import annotations

import asyncio
import logging
import time

from sqlalchemy import Engine

from meshwright.app.base.errors import StoreError
from meshwright.app.store.jobs import Job, JobRepository

log = logging.getLogger(__name__)

POLL_S = 0.1
IDS_A_QUERY = 500


class JobWatcher:
    """Tells waiters of changes. Used from one event loop."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._latest: dict[tuple[str, str], Job] = {}
        self._waiters: dict[tuple[str, str], int] = {}
        self._changed = asyncio.Condition()
        self._polling: asyncio.Task[None] | None = None

    async def change(self, tenant: str, job: Job, *, within_s: float) -> Job | None:
        """The job as soon as it differs from ``job``; None when it has not changed in that time."""
        key, deadline_s = (tenant, job.id), time.monotonic() + within_s
        self._waiters[key] = self._waiters.get(key, 0) + 1
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        try:
            async with self._changed:
                while (latest := self._latest.get(key)) is None or latest.revision <= job.revision:
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0:
                        return None
                    try:
                        await asyncio.wait_for(self._changed.wait(), left_s)
                    except TimeoutError:
                        return None
                return latest
        finally:
            self._waiters[key] -= 1
            if not self._waiters[key]:
                del self._waiters[key]
                self._latest.pop(key, None)

    async def final(self, tenant: str, job: Job, *, within_s: float) -> Job:
        """The job once it is final, or as it is at the end of that time."""
        deadline_s = time.monotonic() + within_s
        while not job.status.is_final and (left_s := deadline_s - time.monotonic()) > 0:
            job = await self.change(tenant, job, within_s=left_s) or job
        return job

    def close(self) -> None:
        """Stop looking."""
        if self._polling is not None:
            self._polling.cancel()

    async def _poll(self) -> None:
        while self._waiters:
            try:
                found = await asyncio.to_thread(self._read, list(self._waiters))
            except StoreError as error:
                log.warning("watched jobs can't be read: %s", error)
            else:
                async with self._changed:
                    changed = {key: job for key, job in found.items() if key in self._waiters}
                    if any(job != self._latest.get(key) for key, job in changed.items()):
                        self._latest.update(changed)
                        self._changed.notify_all()
            await asyncio.sleep(POLL_S)

    def _read(self, keys: list[tuple[str, str]]) -> dict[tuple[str, str], Job]:
        by_tenant: dict[str, list[str]] = {}
        for tenant, job_id in keys:
            by_tenant.setdefault(tenant, []).append(job_id)
        found = {}
        for tenant, ids in by_tenant.items():
            for start in range(0, len(ids), IDS_A_QUERY):
                for job in JobRepository(self._engine, tenant).find_all(ids[start : start + IDS_A_QUERY]):
                    found[tenant, job.id] = job
        return found
