"""The audit log of the service: changes that were made, and requests that were refused for who asked."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshwright.app.base.errors import RateLimitedError, StoreError
from meshwright.app.edge.authentication import RateLimiter
from meshwright.app.edge.middleware import HttpMiddleware
from meshwright.app.edge.problems import request_id_of
from meshwright.app.store.principal import Principal
from meshwright.app.store.security import AuditEntry, AuditRepository

log = logging.getLogger(__name__)

READING = frozenset({"GET", "HEAD", "OPTIONS"})
REFUSALS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
OWN_RECORD = frozenset({"POST /v1/plans"})
"""Jobs and plans say themselves who asked for them; at a hundred a second a second record of each would cost more than
the first."""
MAX_UNKNOWN_PER_S = 5.0
"""Refusals of callers that nobody knows that are kept: strangers must not fill the disk. All are in the log of requests."""
MAX_TARGET_LENGTH = 1000
MAX_PRINCIPAL_LENGTH = 300


class AuditMiddleware(HttpMiddleware):
    """Writes an entry for every change and every refusal, before the caller has the end of the answer."""

    def __init__(self, app: ASGIApp, entries: AuditRepository):
        super().__init__(app)
        self._entries = entries
        self._unknown = RateLimiter(MAX_UNKNOWN_PER_S)

    async def serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and record what it changed, or that it was refused."""

        async def send_recorded(message: Message) -> None:
            if message["type"] == "http.response.start" and is_recorded(scope["method"], _action(scope), message["status"]):
                await asyncio.to_thread(self._record, _entry(scope, message["status"]))
            await send(message)

        await self._app(scope, receive, send_recorded)

    def _record(self, entry: AuditEntry) -> None:
        if not entry.tenant and self._is_one_too_many():
            return
        try:
            self._entries.add(entry)
        except StoreError:
            # The change is made; the log is the last place that can say so.
            log.exception("no audit entry", extra={"action": entry.action, "target": entry.target, "status": entry.status})

    def _is_one_too_many(self) -> bool:
        """Return True if refusals of unknown callers, of all addresses together, come faster than they are kept."""
        try:
            self._unknown.take("")
        except RateLimitedError:
            return True
        return False


def is_recorded(method: str, action: str, status: int) -> bool:
    """Return True if an answer goes into the audit log."""
    if status in REFUSALS:
        return True
    return method not in READING and status < HTTPStatus.BAD_REQUEST and action not in OWN_RECORD


def _action(scope: Scope) -> str:
    route = scope.get("route")
    return f"{scope['method']} {getattr(route, 'path', '')}".strip()


def _entry(scope: Scope, status: int) -> AuditEntry:
    principal: Principal | None = scope.get("state", {}).get("principal")
    return AuditEntry(
        at=datetime.now(UTC),
        tenant=principal.tenant if principal else "",
        principal=principal.name[:MAX_PRINCIPAL_LENGTH] if principal else "",
        action=_action(scope)[:200],
        target=printable(scope["path"])[:MAX_TARGET_LENGTH],
        status=status,
        request_id=request_id_of(scope),
    )


def printable(path: str) -> str:
    """A path without what a database or a log line can't hold."""
    return "".join(character if character.isprintable() else "?" for character in path)
