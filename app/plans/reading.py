"""Stored plans as callers on the event loop read them, with as few queries as that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine

from meshwright.app.db.engine import read_soon
from meshwright.app.db.shared_reads import SharedReads
from meshwright.app.plans.remembered import RememberedTexts
from meshwright.app.plans.store import PlanStore


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The text of a stored plan's document, and since when it is stale; None for one that is not."""

    text: str
    stale_since: datetime | None


class PlanReader:
    """Reads plans by digest. For callers on one event loop.

    texts   those that the process remembers: they never change. Staleness does, and is always asked for.
    """

    def __init__(self, engine: Engine, texts: RememberedTexts):
        self._engine, self._texts = engine, texts
        self._stale = SharedReads(engine, self._stale_since)

    async def get(self, tenant: str, digest: str) -> ReadPlan:
        """The plan stored under a digest; raises PlanNotFoundError, PlanFileError, StoreError."""
        text = self._texts.find(tenant, digest)
        if text is None:
            text = await read_soon(self._engine, PlanStore(self._engine, tenant).get, digest)
            self._texts.keep(tenant, digest, text)
        return ReadPlan(text, await self._stale.find(tenant, digest))

    def _stale_since(self, tenant: str, digests: Sequence[str]) -> dict[str, datetime]:
        return PlanStore(self._engine, tenant).stale_since(*digests)
