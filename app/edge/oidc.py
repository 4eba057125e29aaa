"""Bearer tokens of an OpenID Connect issuer, verified with the issuer's public keys (RFC 7519, RFC 8725).

Only the issuer that the operator names is ever asked for keys; nothing in a token chooses an address or an algorithm.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from meshwright.app.base.errors import AuthenticationError, IssuerUnavailableError
from meshwright.app.edge.outgoing import call_once
from meshwright.app.store.principal import Principal, Scope
from meshwright.app.store.tables import MAX_TENANT

ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA")
"""Asymmetric signatures alone: with a shared secret, whoever verifies could sign."""
LEEWAY_S = 60
"""Clocks of issuer and service may differ by this much."""
FETCH_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 2**20
MAX_TOKEN_LENGTH = 16_384
MALFORMED = (JoseError, ValueError, TypeError, KeyError, AttributeError)
"""Errors that joserfc raises over a token: its own, and those of Python where a field of the header is of another type than
it takes for granted (1.8.0: ``crit`` that is a number)."""
DISCOVERY = "/.well-known/openid-configuration"


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """An issuer, the audience its tokens must name, and the claims that hold tenant and scopes."""

    issuer: str
    audience: str
    tenant_claim: str = "tenant"
    scope_claim: str = "scope"


Fetch = Callable[[str], Any]


def fetch_json(url: str) -> Any:
    """The JSON document at an address; follows no redirect. Raises IssuerUnavailableError."""
    try:
        answer = call_once("GET", url, within_s=FETCH_TIMEOUT_S, max_answer_bytes=MAX_ANSWER_BYTES)
        if answer.status != HTTPStatus.OK:
            raise IssuerUnavailableError(f"the token issuer answers with status {answer.status}")
        return json.loads(answer.body)
    except (httpx.HTTPError, ValueError, RecursionError) as error:
        raise IssuerUnavailableError(f"the token issuer does not answer: {type(error).__name__}") from None


class OidcVerifier:
    """Turns bearer tokens into callers; its keys are those of the issuer."""

    def __init__(
        self,
        settings: OidcSettings,
        fetch: Fetch = fetch_json,
        clock: Callable[[], float] = time.time,
    ):
        self._settings, self._fetch = settings, fetch
        self._claims = jwt.JWTClaimsRegistry(
            now=lambda: int(clock()),
            leeway=LEEWAY_S,
            iss={"essential": True, "value": settings.issuer},
            aud={"essential": True, "value": settings.audience},
            exp={"essential": True},
            sub={"essential": True},
        )
        self._keys = IssuerKeys(self._fetched_keys, clock)

    def principal(self, token: str) -> Principal:
        """The caller a token stands for.

        Raises AuthenticationError for a token that does not hold, IssuerUnavailableError when there are no keys to test it.
        """
        if len(token) > MAX_TOKEN_LENGTH:
            raise _refused("it is too long")
        try:
            claims = self._decode(token)
            self._claims.validate(claims)
        except MALFORMED as error:
            raise _refused(str(error)) from None
        return self._caller(claims)

    def _decode(self, token: str) -> dict[str, Any]:
        try:
            return jwt.decode(token, self._keys.current(), algorithms=ALGORITHMS).claims
        except MALFORMED:
            # The issuer may have begun to sign with a new key.
            return jwt.decode(token, self._keys.renewed(), algorithms=ALGORITHMS).claims

    def _fetched_keys(self) -> KeySet:
        found = self._fetch(self._settings.issuer.rstrip("/") + DISCOVERY)
        if not isinstance(found, Mapping) or found.get("issuer") != self._settings.issuer:
            raise IssuerUnavailableError("the token issuer's configuration names another issuer")
        address = found.get("jwks_uri")
        if not isinstance(address, str) or not _same_scheme(address, self._settings.issuer):
            raise IssuerUnavailableError("the token issuer's configuration names no usable jwks_uri")
        try:
            return KeySet.import_key_set(self._fetch(address))
        except (JoseError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise IssuerUnavailableError(f"the token issuer's keys can't be read: {type(error).__name__}") from None

    def _caller(self, claims: Mapping[str, Any]) -> Principal:
        tenant, subject = claims.get(self._settings.tenant_claim), claims.get("sub")
        if not isinstance(tenant, str) or not tenant or not isinstance(subject, str):
            raise _refused(f"it has no claim {self._settings.tenant_claim!r} with the name of a tenant")
        if len(tenant) > MAX_TENANT or not tenant.isprintable() or not subject.isprintable():
            raise _refused(f"its tenant is no name of 1 to {MAX_TENANT} printable characters, or its subject holds others")
        given = claims.get(self._settings.scope_claim, "")
        names = given.split() if isinstance(given, str) else given if isinstance(given, list) else []
        if any(isinstance(name, list | dict) for name in names):
            raise _refused(f"its claim {self._settings.scope_claim!r} is no list of names")
        # Scopes of other services stand in the same claim.
        scopes = frozenset(Scope(name) for name in names if name in set(Scope))
        return Principal(tenant, f"oidc:{subject}", scopes)


def _same_scheme(address: str, issuer: str) -> bool:
    return address.split("://")[0] == issuer.split("://")[0]


def _refused(why: str) -> AuthenticationError:
    return AuthenticationError("the token can't be used", allowed="a token of the issuer", remedy=f"get a new one ({why})")


# The public keys of a token issuer: fetched by one thread at a time, outside of every lock, and not too often.

log = logging.getLogger(__name__)

KEYS_FRESH_S = 3600.0
KEYS_USABLE_S = 2 * KEYS_FRESH_S
"""Keys that are older are used no more: the issuer may have withdrawn one."""
MIN_REFRESH_S = 30.0
"""A token with an unknown key id, or a failure of the issuer, makes the keys be fetched anew at most this often."""
FIRST_WAIT_S = 12.0
"""The longest wait for the first keys that there are: two documents are fetched, each within its own time."""


class IssuerKeys:
    """Keeps keys for an hour. Those that it has serve everybody while new ones are fetched, or can't be."""

    def __init__(self, fetch: Callable[[], KeySet], clock: Callable[[], float]):
        self._fetch, self._clock = fetch, clock
        self._keys: KeySet | None = None
        self._fetched_at_s = 0.0
        self._failed_at_s: float | None = None
        self._failure = ""
        self._fetching: threading.Event | None = None
        self._lock = threading.Lock()

    def current(self) -> KeySet:
        """Return the keys; raises IssuerUnavailableError where there are none that may be used."""
        return self._keys_at_most(KEYS_FRESH_S)

    def renewed(self) -> KeySet:
        """Return the keys after a token named none of them, fetched anew if that was not done lately."""
        return self._keys_at_most(MIN_REFRESH_S)

    def _keys_at_most(self, old_s: float) -> KeySet:
        with self._lock:
            if self._has_keys(old_s) or self._has_failed_lately():
                return self._usable()
            fetching, is_mine = self._fetching, self._fetching is None
            if fetching is None:
                fetching = self._fetching = threading.Event()
            elif self._has_keys(KEYS_USABLE_S):
                return self._usable()
        if is_mine:
            self._renew(fetching)
        else:
            fetching.wait(FIRST_WAIT_S)
        with self._lock:
            return self._usable()

    def _renew(self, done: threading.Event) -> None:
        try:
            keys = self._fetch()
        except IssuerUnavailableError as error:
            with self._lock:
                self._failed_at_s, self._failure = self._clock(), str(error)
            log.error("no keys of the token issuer: %s; asked again in %g s", error, MIN_REFRESH_S)
        else:
            with self._lock:
                self._keys, self._fetched_at_s, self._failed_at_s = keys, self._clock(), None
        finally:
            with self._lock:
                self._fetching = None
            done.set()

    def _has_keys(self, old_s: float) -> bool:
        return self._keys is not None and self._clock() - self._fetched_at_s <= old_s

    def _has_failed_lately(self) -> bool:
        return self._failed_at_s is not None and self._clock() - self._failed_at_s <= MIN_REFRESH_S

    def _usable(self) -> KeySet:
        if self._keys is None or not self._has_keys(KEYS_USABLE_S):
            raise IssuerUnavailableError(self._failure or "the token issuer has not answered yet")
        return self._keys
