"""From an Authorization header to a caller: API keys, tokens of an issuer, or nobody asked at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from meshwright.app.db.engine import read_soon
from meshwright.app.errors import AuthenticationError
from meshwright.app.security.api_keys import prefix_of
from meshwright.app.security.key_repository import KeyRepository
from meshwright.app.security.oidc import OidcVerifier
from meshwright.app.security.principal import LOCAL, Principal

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
        self._token_threads = ThreadPoolExecutor(TOKEN_THREADS, thread_name_prefix="tokens")

    async def caller(self, authorization: str | None) -> Principal:
        """As ``principal``, from the event loop."""
        if self._keys is None:
            return self.principal(authorization)
        if self._oidc is None:
            return await read_soon(self._keys.engine, self.principal, authorization)
        if not is_token(authorization):
            return await read_soon(self._keys.engine, self.principal, authorization)
        # The issuer's keys may have to be fetched. In threads of their own, so that an issuer that hangs holds nobody else up.
        return await asyncio.get_running_loop().run_in_executor(self._token_threads, self.principal, authorization)

    def principal(self, authorization: str | None) -> Principal:
        """The caller that shows this header.

        Raises AuthenticationError, the same for a key that is unknown, expired, revoked or wrong; StoreError and
        IssuerUnavailableError when the caller can't be told.
        """
        if self._keys is None:
            return LOCAL
        scheme, _, credentials = (authorization or "").partition(" ")
        credentials = credentials.strip()
        if scheme.lower() != SCHEME or not credentials:
            raise AuthenticationError(
                "no API key or token was given",
                allowed="Authorization: Bearer KEY",
                remedy="make a key with 'meshwright keys create'",
            )
        prefix = prefix_of(credentials)
        if prefix is not None:
            return self._of_key(self._keys, prefix, credentials)
        if self._oidc is not None:
            return self._oidc.principal(credentials)
        raise _refused()

    def _of_key(self, keys: KeyRepository, prefix: str, text: str) -> Principal:
        key = keys.find(prefix)
        if key is None or not key.matches(text) or not key.is_valid_at(self._now()):
            raise _refused()
        return key.principal()


def is_token(authorization: str | None) -> bool:
    """Return True if a header shows what can only be a token of an issuer, not an API key."""
    scheme, _, credentials = (authorization or "").partition(" ")
    return scheme.lower() == SCHEME and bool(credentials.strip()) and prefix_of(credentials.strip()) is None


def _refused() -> AuthenticationError:
    return AuthenticationError(
        "the API key can't be used", allowed="a key that is neither expired nor revoked", remedy="ask an administrator for one"
    )
