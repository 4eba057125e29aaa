"""From an Authorization header to a caller: API keys, tokens of an issuer, or nobody asked at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from meshwright.app.db.shared_reads import SharedReads
from meshwright.app.errors import AuthenticationError
from meshwright.app.security.api_keys import ApiKey, prefix_of
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
