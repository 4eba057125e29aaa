"""Bearer tokens of an OpenID Connect issuer, verified with the issuer's public keys (RFC 7519, RFC 8725).

Only the issuer that the operator names is ever asked for keys; nothing in a token chooses an address or an algorithm.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from meshwright.app.db.tables.metadata import MAX_TENANT
from meshwright.app.errors import AuthenticationError, IssuerUnavailableError
from meshwright.app.http.outgoing import call_once
from meshwright.app.security.issuer_keys import IssuerKeys
from meshwright.app.security.principal import Principal, Scope

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
