"""Shared by the tests of webhooks and others: engine, finished_batch."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Engine, update

from meshwright.app.store.engine import writing
from meshwright.app.store.replans import WEBHOOK_PENDING, Replan, ReplanRepository
from meshwright.app.store.tables import replans


def finished_batch(engine: Engine, tenant: str, number: int, url: str) -> None:
    batch = Replan(
        row=0,
        id=f"{tenant}-{number}",
        cluster="prod",
        version=1,
        cause="the cluster changed",
        status="finished",
        created_at=datetime.now(UTC),
        finished_at=datetime.now(UTC),
        revision=1,
        webhook=url,
        webhook_status=WEBHOOK_PENDING,
    )
    with writing(engine) as connection:
        ReplanRepository(engine, tenant).add(connection, batch, ())
        connection.execute(update(replans).where(replans.c.id == batch.id).values(webhook_status=WEBHOOK_PENDING))
