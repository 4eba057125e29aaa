"""Calling back when a batch has finished: only hosts that the operator allows, signed, tried a few times, never redirected.

A call is made at least once: a worker that dies over one is followed by another, with the same delivery id.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
from sqlalchemy import Engine

from meshwright.app.base.errors import DocumentError, FieldError, StoreError, WebhookSecretError
from meshwright.app.base.settings import Settings
from meshwright.app.edge.outgoing import call_once
from meshwright.app.edge.webhook_secrets import signing_secrets
from meshwright.app.service.replan_schemas import replan_document
from meshwright.app.store.engine import reading, writing
from meshwright.app.store.replans import (
    WEBHOOK_PENDING,
    ReplanRepository,
    WebhookCall,
    claim_webhook,
    due_webhooks,
    note_webhook,
)
from meshwright.app.store.security import WebhookSecretRepository

log = logging.getLogger(__name__)

SIGNATURE_HEADER = "meshwright-signature"
DELIVERY_HEADER = "meshwright-delivery"
"""The batch's id: the same for every try, so that a receiver can tell a call that it has had."""
TIMEOUT_S = 10.0
"""Of a whole try, from the name's look-up to the status of the answer."""
TRIES = 3
PAUSE_S = 2.0
TAKEOVER_S = 3 * TIMEOUT_S
"""Silence after which the worker that was about to call is given up: longer than a try and the longest pause."""
CALLS_A_LOOK = 1000
SENDERS = 8
"""Calls that a worker makes at once. One tenant has one of them at most, so that slow receivers hold up their own tenant."""
MAX_URL_LENGTH = 500
_LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class WebhookSettings:
    """Hosts that may be called, and the secret that calls are signed with for tenants without one of their own, and that
    tenants' own are made of; without either no call is made."""

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


def signature(body: bytes, secrets: Sequence[str], moment_s: int) -> str:
    """``t=<seconds>,v1=<hex>``, and ``,v1=<hex>`` for every further secret: HMAC-SHA-256 over ``<seconds>.<body>``."""
    signed = f"{moment_s}.".encode() + body
    macs = (hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest() for secret in secrets)
    return ",".join((f"t={moment_s}", *(f"v1={mac}" for mac in macs)))


class WebhookSender:
    """Makes the calls that are due, of all tenants."""

    def __init__(
        self,
        engine: Engine,
        settings: WebhookSettings,
        *,
        sleep: Callable[[float], object] | None = None,
        takeover_s: float = TAKEOVER_S,
    ):
        self._engine, self._settings, self._takeover_s = engine, settings, takeover_s
        self._stopping = threading.Event()
        self._sleep = sleep or self._stopping.wait
        self._senders = ThreadPoolExecutor(SENDERS, thread_name_prefix="webhook")
        self._busy: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Begin the first call that is due of each tenant that has none in hand; waits for none. Raises StoreError.

        Another worker's calls are left to it while it is alive.
        """
        with reading(self._engine) as connection:
            due = due_webhooks(connection, silent_s=self._takeover_s, limit=CALLS_A_LOOK)
        for call in due:
            with self._lock:
                if call.tenant in self._busy:
                    continue
                self._busy.add(call.tenant)
            self._senders.submit(self._deal_with, call)

    def close(self) -> None:
        """Wait for the calls that were begun."""
        self._senders.shutdown()

    def stop(self) -> None:
        """Begin no more calls, try none again, and wait for none: what is not made, another worker makes.

        A try that is under way has its ``TIMEOUT_S``; the process ends no sooner.
        """
        self._stopping.set()
        self._senders.shutdown(wait=False, cancel_futures=True)

    def _deal_with(self, call: WebhookCall) -> None:
        try:
            mine = self._claim(call)
            if mine is not None:
                self._make(mine)
        except StoreError as error:
            log.warning("a webhook is left for later: %s", error)
        finally:
            with self._lock:
                self._busy.discard(call.tenant)

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
                if self._stopping.is_set():
                    said = WEBHOOK_PENDING  # For another worker, at once.
                    break
                still_mine = self._claim(call)
                if still_mine is None:
                    return
                call = still_mine
            said, is_over = self._try(batch.webhook, body, call)
            if is_over:
                break
        else:
            log.warning("webhook not delivered", extra={"replan": call.replan_id, "said": said})
        with writing(self._engine) as connection:
            note_webhook(connection, call, said)

    def _try(self, url: str, body: bytes, call: WebhookCall) -> tuple[str, bool]:
        """Try the call once. Return its result in words, and True if another try is of no use."""
        secrets_of = WebhookSecretRepository(self._engine)
        try:
            check_url(url, self._settings)
            secrets = signing_secrets(secrets_of, call.tenant, service_secret=self._settings.secret)
        except (DocumentError, WebhookSecretError) as error:
            return f"refused: {error}", True
        headers = {
            "content-type": "application/json",
            DELIVERY_HEADER: call.replan_id,
            SIGNATURE_HEADER: signature(body, secrets, int(time.time())),
        }
        try:
            # What the answer says beyond its status is not read.
            status = call_once("POST", url, within_s=TIMEOUT_S, body=body, headers=headers).status
        except httpx.HTTPError as error:
            return f"failed: {type(error).__name__}", False
        is_success = 200 <= status < 300
        return f"{'delivered' if is_success else 'failed'}: {status}", is_success
