"""Calling back when a batch has finished: only hosts that the operator allows, signed, tried a few times, never redirected.

A call is made at least once: a worker that dies over one is followed by another, with the same delivery id.
"""

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

from meshwright.app.db.engine import reading, writing
from meshwright.app.errors import DocumentError, FieldError
from meshwright.app.replans.repository import (
    ReplanRepository,
    WebhookCall,
    claim_webhook,
    due_webhooks,
    note_webhook,
)
from meshwright.app.replans.schemas import replan_document
from meshwright.app.settings import Settings

log = logging.getLogger(__name__)

SIGNATURE_HEADER = "meshwright-signature"
DELIVERY_HEADER = "meshwright-delivery"
"""The batch's id: the same for every try, so that a receiver can tell a call that it has had."""
TIMEOUT_S = 10.0
TRIES = 3
PAUSE_S = 2.0
TAKEOVER_S = 3 * TIMEOUT_S
"""Silence after which the worker that was about to call is given up: longer than a try and the longest pause."""
CALLS_A_LOOK = 20
MAX_URL_LENGTH = 500
_LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class WebhookSettings:
    """Hosts that may be called, and the secret that calls are signed with; without either none is made."""

    hosts: frozenset[str] = frozenset()
    secret: str = ""


def webhook_settings(settings: Settings) -> WebhookSettings:
    """Return the service's settings of webhooks."""
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

    def __init__(
        self,
        engine: Engine,
        settings: WebhookSettings,
        *,
        sleep: Callable[[float], None] = time.sleep,
        takeover_s: float = TAKEOVER_S,
    ):
        self._engine, self._settings, self._sleep, self._takeover_s = engine, settings, sleep, takeover_s

    def __call__(self) -> None:
        """Make every call that is due; another worker's are left to it while it is alive. Raises StoreError."""
        with reading(self._engine) as connection:
            due = due_webhooks(connection, silent_s=self._takeover_s, limit=CALLS_A_LOOK)
        for call in due:
            mine = self._claim(call)
            if mine is not None:
                self._make(mine)

    def _claim(self, call: WebhookCall) -> WebhookCall | None:
        with writing(self._engine) as connection:
            return claim_webhook(connection, call)

    def _make(self, call: WebhookCall) -> None:
        batches = ReplanRepository(self._engine, call.tenant)
        batch = batches.find(call.replan_id)
        assert batch is not None and batch.webhook is not None, "a batch that was due a moment ago"
        body = replan_document(batch, batches.totals(call.replan_id)).model_dump_json().encode()
        said = ""
        for attempt in range(TRIES):
            if attempt:
                self._sleep(PAUSE_S * attempt)
                still_mine = self._claim(call)
                if still_mine is None:
                    return
                call = still_mine
            said, is_over = self._try(batch.webhook, body, delivery=call.replan_id)
            if is_over:
                break
        else:
            log.warning("webhook not delivered", extra={"replan": call.replan_id, "said": said})
        with writing(self._engine) as connection:
            note_webhook(connection, call, said)

    def _try(self, url: str, body: bytes, *, delivery: str) -> tuple[str, bool]:
        """Try the call once. Return its result in words, and True if another try is of no use."""
        try:
            check_url(url, self._settings)
        except DocumentError as error:
            return f"refused: {error}", True
        headers = {
            "content-type": "application/json",
            DELIVERY_HEADER: delivery,
            SIGNATURE_HEADER: signature(body, self._settings.secret, int(time.time())),
        }
        try:
            # What the answer says beyond its status is not read.
            with httpx.stream("POST", url, content=body, headers=headers, timeout=TIMEOUT_S, follow_redirects=False) as answer:
                verdict = "delivered" if answer.is_success else "failed"
                return f"{verdict}: {answer.status_code}", answer.is_success
        except httpx.HTTPError as error:
            return f"failed: {type(error).__name__}", False
