"""From an Authorization header to a caller: API keys, tokens of an issuer, or nobody asked at all."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

from meshwright.app.base.errors import AuthenticationError, RateLimitedError
from meshwright.app.edge.oidc import OidcVerifier
from meshwright.app.store.principal import LOCAL, Principal
from meshwright.app.store.security import ApiKey, KeyRepository, prefix_of
from meshwright.app.store.shared_reads import SharedReads

SCHEME = "bearer"
TOKEN_THREADS = 8
"""Threads that verify tokens; one of them may be waiting for the issuer."""


class Authenticator:
    """Finds the caller of a request.

    keys   where API keys are; None lets everybody in as ``LOCAL``, for a service on a loopback address
    oidc   verifies tokens of an issuer; None takes API keys alone
    """

    def __init__(
        self,
        keys: KeyRepository | None,
        oidc: OidcVerifier | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ):
        self._keys, self._oidc, self._now = keys, oidc, now
        # Keys of all tenants are one group: who shows one is not known before.
        self._shared = None if keys is None else SharedReads(keys.engine, lambda _, prefixes: keys.find_all(prefixes))
        self._token_threads = ThreadPoolExecutor(TOKEN_THREADS, thread_name_prefix="tokens")

    async def caller(self, authorization: str | None) -> Principal:
        """As ``principal``, from the event loop."""
        if self._shared is None:
            return LOCAL
        credentials = _credentials(authorization)
        prefix = prefix_of(credentials)
        if prefix is not None:
            return self._of_key(await self._shared.find("", prefix), credentials)
        if self._oidc is None:
            raise _refused()
        # The issuer's keys may have to be fetched. In threads of their own, so that an issuer that hangs holds nobody else up.
        return await asyncio.get_running_loop().run_in_executor(self._token_threads, self._of_token, credentials)

    def principal(self, authorization: str | None) -> Principal:
        """The caller that shows this header.

        Raises AuthenticationError, the same for a key that is unknown, expired, revoked or wrong; StoreError and
        IssuerUnavailableError when the caller can't be told.
        """
        if self._keys is None:
            return LOCAL
        credentials = _credentials(authorization)
        prefix = prefix_of(credentials)
        if prefix is not None:
            return self._of_key(self._keys.find(prefix), credentials)
        return self._of_token(credentials)

    def _of_key(self, key: ApiKey | None, text: str) -> Principal:
        if key is None or not key.matches(text) or not key.is_valid_at(self._now()):
            raise _refused()
        return key.principal()

    def _of_token(self, token: str) -> Principal:
        if self._oidc is None:
            raise _refused()
        return self._oidc.principal(token)


def is_token(authorization: str | None) -> bool:
    """Return True if a header shows what can only be a token of an issuer, not an API key."""
    try:
        return prefix_of(_credentials(authorization)) is None
    except AuthenticationError:
        return False


def _credentials(authorization: str | None) -> str:
    """Return the key or token that a header shows; raises AuthenticationError."""
    scheme, _, credentials = (authorization or "").partition(" ")
    credentials = credentials.strip()
    if scheme.lower() != SCHEME or not credentials:
        raise AuthenticationError(
            "no API key or token was given",
            allowed="Authorization: Bearer KEY",
            remedy="make a key with 'meshwright keys create'",
        )
    return credentials


def _refused() -> AuthenticationError:
    return AuthenticationError(
        "the API key can't be used", allowed="a key that is neither expired nor revoked", remedy="ask an administrator for one"
    )


# Rate limits: a token bucket for each caller, in this process.

MAX_BUCKETS = 10_000
"""Callers remembered at once. One that was forgotten starts with a full bucket, so forgetting lets nobody be refused."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


class RateLimiter:
    """Lets each caller make ``rate_per_s`` requests a second in the long run, and twice as many at once.

    Raises ValueError for a rate that is not positive.
    """

    def __init__(self, rate_per_s: float, clock: Callable[[], float] = time.monotonic):
        if not rate_per_s > 0:
            raise ValueError(f"rate_per_s must be positive, got {rate_per_s}")
        self._rate_per_s = rate_per_s
        self._most = max(1.0, 2.0 * rate_per_s)
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, caller: str) -> None:
        """Count a request of a caller; raises RateLimitedError when there were too many."""
        self._ask(caller, counted=1.0)

    def check(self, caller: str) -> None:
        """Raise RateLimitedError if a request of a caller would be one too many; counts nothing."""
        self._ask(caller, counted=0.0)

    def _ask(self, caller: str, *, counted: float) -> None:
        with self._lock:
            bucket = self._filled(caller)
            if bucket.tokens >= 1.0:
                bucket.tokens -= counted
                return
            wait_s = math.ceil((1.0 - bucket.tokens) / self._rate_per_s)
        raise RateLimitedError(
            f"too many requests: {self._rate_per_s:g} a second are allowed to each caller; try again in {wait_s} s", wait_s
        )

    def _filled(self, caller: str) -> _Bucket:
        now_s = self._clock()
        bucket = self._buckets.pop(caller, None) or _Bucket(self._most, now_s)
        bucket.tokens = min(self._most, bucket.tokens + (now_s - bucket.at_s) * self._rate_per_s)
        bucket.at_s = now_s
        self._buckets[caller] = bucket
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return bucket
