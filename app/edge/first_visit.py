"""The first visit: one sign-in by a link, for whoever reads the terminal of a service that this machine alone can reach.

As notebooks' servers do, `meshwright serve` prints an address with a secret in it. It holds once and not for long; who follows
it gets a key of a day in the browser's cookie.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from meshwright.app.base.errors import AuthenticationError
from meshwright.app.edge.keys import KeyWish, create_key
from meshwright.app.store.principal import Scope
from meshwright.app.store.security import SECRET_BYTES, KeyRepository, sha256_of
from meshwright.app.store.tables import DEFAULT_TENANT

PATH = "/first-visit"
MINUTES = 15
"""Time from the start of the service until the link has ended: enough to look at a terminal."""
KEY_DAYS = 1
SCOPES = frozenset(Scope) - {Scope.ADMIN}


@dataclass(slots=True)
class FirstVisit:
    """The secret of a link, until it is used or its time is over.

    ``now`` is the clock; the secret itself is kept only until `link` has been asked for it.
    """

    keys: KeyRepository
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _sha256: str = ""
    _ends_at: datetime | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def link(self, host: str, port: int) -> str:
        """The address to open; one that was given before ends."""
        secret = secrets.token_urlsafe(SECRET_BYTES)
        self._sha256, self._ends_at = sha256_of(secret), self.now() + timedelta(minutes=MINUTES)
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{port}{PATH}?token={secret}"

    def key(self, token: str) -> str:
        """The text of a new key in exchange for the link's secret, which ends by it; raises AuthenticationError."""
        with self._lock:
            if self._ends_at is None or self.now() > self._ends_at or not hmac.compare_digest(sha256_of(token), self._sha256):
                raise AuthenticationError(
                    "this link has been used, or its time is over",
                    allowed=f"one visit within {MINUTES} minutes of the start",
                    remedy="start the service again, or make a key with 'meshwright keys create'",
                )
            self._ends_at = None
        return create_key(self.keys, KeyWish(DEFAULT_TENANT, "first visit", SCOPES, KEY_DAYS)).text
