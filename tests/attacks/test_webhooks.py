"""A receiver that never finishes its answer holds up no other tenant's calls, and no tenant can sign another's."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, select

from meshwright.app.base.errors import NoSuchError, WebhookSecretError
from meshwright.app.edge.webhook_secrets import MadeSecret, end_secret, rotate_secret, signing_secrets
from meshwright.app.service.webhook import WebhookSender, WebhookSettings
from meshwright.app.store.engine import open_engine, reading
from meshwright.app.store.migrate import upgrade
from meshwright.app.store.replans import WEBHOOK_PENDING, due_webhooks
from meshwright.app.store.security import WebhookSecretRepository
from meshwright.app.store.tables import replans, webhook_secrets
from meshwright.costmodels.errors import InvalidInputError
from tests.attacks.dripping import dripping
from tests.attacks.webhooks import finished_batch
from tests.integration.replans.rest_replans import Receiver
from tests.support.command_line import Cli


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_engine(f"sqlite:///{tmp_path / 'plans.db'}")
    upgrade(engine)
    yield engine
    engine.dispose()


HOSTS = WebhookSettings(frozenset({"127.0.0.1"}), "s3cret")


def status_of(engine: Engine, batch: str) -> str:
    with reading(engine) as connection:
        return str(connection.execute(select(replans.c.webhook_status).where(replans.c.id == batch)).scalar_one())


@pytest.mark.slow
@pytest.mark.parametrize("what", ["header", "informational"])
def test_a_call_that_never_ends_holds_up_its_own_tenant_alone(
    engine: Engine, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.app.service.webhook.TIMEOUT_S", 2.5)
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


def test_calls_that_one_tenant_owes_by_the_thousand_hide_no_other_tenants(engine: Engine) -> None:
    for number in range(3):
        finished_batch(engine, "greedy", number, "http://127.0.0.1:1/done")
    finished_batch(engine, "modest", 0, "http://127.0.0.1:1/done")
    with reading(engine) as connection:
        assert [call.replan_id for call in due_webhooks(connection, silent_s=30, limit=2)] == ["greedy-0", "modest-0"]


def test_a_worker_that_ends_tries_no_call_again_and_leaves_it_to_the_next(engine: Engine) -> None:
    receiver = Receiver([500, 200])
    server = receiver.serve()
    finished_batch(engine, "acme", 0, f"http://127.0.0.1:{server.server_port}/done")
    ending = WebhookSender(engine, HOSTS, sleep=lambda seconds: ending.stop())
    ending()
    ending.close()
    assert (len(receiver.received), status_of(engine, "acme-0")) == (1, WEBHOOK_PENDING)
    following = WebhookSender(engine, HOSTS)
    following()
    following.close()
    assert (len(receiver.received), status_of(engine, "acme-0")) == (2, "delivered: 200")
    server.shutdown()
    server.server_close()


def is_signed_with(header: str, body: bytes, secret: str) -> bool:
    """As docs/security.md tells receivers to look."""
    parts = [part.partition("=") for part in header.split(",")]
    moment = next(value for name, _, value in parts if name == "t")
    wanted = hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    return any(name == "v1" and hmac.compare_digest(value, wanted) for name, _, value in parts)


def rotated(engine: Engine, tenant: str, grace_hours: int) -> MadeSecret:
    grace = timedelta(hours=grace_hours)
    return rotate_secret(WebhookSecretRepository(engine), tenant, service_secret=HOSTS.secret, grace=grace)


def signing(engine: Engine, tenant: str) -> tuple[str, ...]:
    return signing_secrets(WebhookSecretRepository(engine), tenant, service_secret=HOSTS.secret)


def test_each_tenants_calls_are_signed_with_its_own_secrets(engine: Engine) -> None:
    first = rotated(engine, "acme", 24)
    second = rotated(engine, "acme", 24)
    other = rotated(engine, "rival", 24)
    secrets = {"first": first.text, "second": second.text, "other": other.text, "service": HOSTS.secret}
    receiver = Receiver([200] * 3)
    server = receiver.serve()
    url = f"http://127.0.0.1:{server.server_port}/done"
    signed = {}
    for tenant in ("acme", "rival", "nobody"):
        finished_batch(engine, tenant, 0, url)
        sender = WebhookSender(engine, HOSTS, sleep=lambda seconds: None)
        sender()
        sender.close()
        headers, body = receiver.received[-1]
        signed[tenant] = {name for name, text in secrets.items() if is_signed_with(headers["meshwright-signature"], body, text)}
    server.shutdown()
    server.server_close()
    assert signed == {"acme": {"first", "second"}, "rival": {"other"}, "nobody": {"service"}}


def test_two_secrets_sign_at_most_and_one_is_ended_at_once(engine: Engine) -> None:
    stored = WebhookSecretRepository(engine)
    first, second = rotated(engine, "acme", 24), rotated(engine, "acme", 24)
    assert signing(engine, "acme") == (second.text, first.text)
    with pytest.raises(InvalidInputError, match="two webhook secrets sign already"):
        rotated(engine, "acme", 24)
    end_secret(stored, first.stored.id, tenant="acme")
    assert signing(engine, "acme") == (second.text,)
    third = rotated(engine, "acme", 0)
    assert signing(engine, "acme") == (third.text,)
    with pytest.raises(NoSuchError):
        end_secret(stored, third.stored.id, tenant="rival")
    assert signing(engine, "acme") == (third.text,)


def test_a_copy_of_the_database_signs_nothing(engine: Engine) -> None:
    made = rotated(engine, "acme", 24)
    with reading(engine) as connection:
        row = connection.execute(select(webhook_secrets)).one()
    assert made.text not in [str(value) for value in row]
    with pytest.raises(WebhookSecretError):
        signing_secrets(WebhookSecretRepository(engine), "acme", service_secret="another")
    finished_batch(engine, "acme", 0, "http://127.0.0.1:1/done")
    sender = WebhookSender(engine, WebhookSettings(HOSTS.hosts, "another"), sleep=lambda seconds: None)
    sender()
    sender.close()
    assert status_of(engine, "acme-0").startswith("refused: the tenant's webhook secrets were made under another")


def test_the_command_line_makes_lists_and_ends_secrets(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("webhooks", "rotate", "--tenant", "acme") == 2
    assert "MESHWRIGHT_WEBHOOK_SECRET" in cli.err
    monkeypatch.setenv("MESHWRIGHT_WEBHOOK_SECRET", HOSTS.secret)
    assert cli("webhooks", "rotate", "--tenant", "acme") == 0
    text = cli.out.strip()
    assert text.startswith("mws_")
    cli("webhooks", "list", "--json")
    (item,) = json.loads(cli.out)["webhook_secrets"]
    assert (item["tenant"], item["ends_at"], "secret" in item) == ("acme", None, False)
    assert cli("webhooks", "end", item["id"]) == 0
    cli("webhooks", "list", "--json", "--tenant", "acme")
    assert json.loads(cli.out)["webhook_secrets"][0]["ends_at"] is not None
    assert cli("webhooks", "end", text) == 2
    assert text not in cli.err, "a secret that was pasted is not repeated"
