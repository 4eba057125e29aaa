"""A receiver that never finishes its answer holds up no other tenant's calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine, select, update

from meshwright.app.db.engine import open_engine, reading, writing
from meshwright.app.db.migrate import upgrade
from meshwright.app.db.tables.fleet import replans
from meshwright.app.replans.repository import WEBHOOK_PENDING, Replan, ReplanRepository
from meshwright.app.replans.webhook import WebhookSender, WebhookSettings
from tests.attacks.dripping import dripping
from tests.integration.replans.test_rest_replans import Receiver

HOSTS = WebhookSettings(frozenset({"127.0.0.1"}), "s3cret")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_engine(f"sqlite:///{tmp_path / 'plans.db'}")
    upgrade(engine)
    yield engine
    engine.dispose()


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


def status_of(engine: Engine, batch: str) -> str:
    with reading(engine) as connection:
        return str(connection.execute(select(replans.c.webhook_status).where(replans.c.id == batch)).scalar_one())


@pytest.mark.parametrize("what", ["header", "informational"])
def test_a_call_that_never_ends_holds_up_its_own_tenant_alone(
    engine: Engine, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.app.replans.webhook.TIMEOUT_S", 8.0)
    receiver = Receiver([200])
    server = receiver.serve()
    pause = threading.Event()
    with dripping(what) as slow:
        for number in range(30):
            finished_batch(engine, "greedy", number, slow)
        finished_batch(engine, "modest", 0, f"http://127.0.0.1:{server.server_port}/done")
        sender = WebhookSender(engine, HOSTS, sleep=lambda seconds: None)
        sender()
        for _ in range(100):
            if receiver.received:
                break
            pause.wait(0.05)
        assert len(receiver.received) == 1
        assert status_of(engine, "greedy-0") == "sending", "the slow call is still being made"
        # Every try of it has its end, which the sender waits for here.
        sender.close()
    assert status_of(engine, "greedy-0") == "failed: TimeoutException"
    assert status_of(engine, "modest-0") == "delivered: 200"
    server.shutdown()
    server.server_close()
