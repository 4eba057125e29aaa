"""Calling back when a batch has finished: only hosts that the operator allows, signed, tried a few times, never redirected."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
from sqlalchemy import Engine

from app.db.engine import reading, writing
from app.db.replan_repository import WEBHOOK_PENDING, ReplanRepository, claim_webhook, due_webhooks
from app.errors import DocumentError, FieldError
from app.replans.schemas import replan_document
from app.settings import Settings

log = logging.getLogger(__name__)

SIGNATURE_HEADER = "meshwright-signature"
TIMEOUT_S = 10.0
TRIES = 3
PAUSE_S = 2.0
MAX_URL_LENGTH = 500
_LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class WebhookSettings:
    """Hosts that may be called, and the secret that calls are signed with; without either none is made."""

    hosts: frozenset[str] = frozenset()
    secret: str = ""


def webhook_settings(settings: Settings) -> WebhookSettings:
    """What the service's settings say of webhooks."""
    hosts = frozenset(host.strip().lower() for host in settings.webhook_hosts.split(",") if host.strip())
    return WebhookSettings(hosts, settings.webhook_secret)


def check_url(url: str, settings: WebhookSettings) -> None:
    """Refuse a URL that may not be called; raises DocumentError."""
    allowed = ", ".join(sorted(settings.hosts)) or "no host: MESHWRIGHT_WEBHOOK_HOSTS and MESHWRIGHT_WEBHOOK_SECRET are not set"
    try:
        parts = urlsplit(url)
        host, with_user = parts.hostname or "", parts.username is not None
        _ = parts.port
    except ValueError:
        host, with_user, parts = "", False, urlsplit("")
    encrypted = parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)
    usable = len(url) <= MAX_URL_LENGTH and url.isprintable() and encrypted and not with_user
    if not (usable and settings.secret and host in settings.hosts):
        fault = FieldError("webhook", "may not be called", given=repr(url[:100]), allowed=f"https on {allowed}")
        raise DocumentError("this request can't be used", (fault,))


def signature(body: bytes, secret: str, moment_s: int) -> str:
    """``t=<seconds>,v1=<hex>``: HMAC-SHA-256 over ``<seconds>.<body>``."""
    mac = hmac.new(secret.encode(), f"{moment_s}.".encode() + body, hashlib.sha256)
    return f"t={moment_s},v1={mac.hexdigest()}"


class WebhookSender:
    """Makes the calls that are due, of all tenants."""

    def __init__(self, engine: Engine, settings: WebhookSettings, *, sleep: Callable[[float], None] = time.sleep):
        self._engine, self._settings, self._sleep = engine, settings, sleep

    def __call__(self) -> None:
        """Make every call that is due; another worker's are left to it. Raises StoreError."""
        with reading(self._engine) as connection:
            due = due_webhooks(connection, limit=20)
        for tenant, replan_id in due:
            with writing(self._engine) as connection:
                mine = claim_webhook(connection, tenant, replan_id, was=WEBHOOK_PENDING, now="sending")
            if mine:
                said = self._send(tenant, replan_id)
                with writing(self._engine) as connection:
                    claim_webhook(connection, tenant, replan_id, was="sending", now=said)

    def _send(self, tenant: str, replan_id: str) -> str:
        """What became of the call."""
        batches = ReplanRepository(self._engine, tenant)
        batch = batches.find(replan_id)
        assert batch is not None and batch.webhook is not None, "a batch that was due a moment ago"
        try:
            check_url(batch.webhook, self._settings)
        except DocumentError as error:
            return f"refused: {error}"
        body = replan_document(batch, batches.counts(replan_id)).model_dump_json().encode()
        said = ""
        for attempt in range(TRIES):
            if attempt:
                self._sleep(PAUSE_S * attempt)
            headers = {"content-type": "application/json"}
            headers[SIGNATURE_HEADER] = signature(body, self._settings.secret, int(time.time()))
            try:
                answer = httpx.post(batch.webhook, content=body, headers=headers, timeout=TIMEOUT_S, follow_redirects=False)
            except httpx.HTTPError as error:
                said = f"failed: {type(error).__name__}"
                continue
            if answer.is_success:
                return f"delivered: {answer.status_code}"
            said = f"failed: {answer.status_code}"
        log.warning("webhook not delivered", extra={"replan": replan_id, "said": said})
        return said
