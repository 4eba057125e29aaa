"""Tokens of an issuer: which are taken, which are refused, and when keys are asked for."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from joserfc.jwk import ECKey, Key, RSAKey

from meshwright.app.base.errors import AuthenticationError, IssuerUnavailableError
from meshwright.app.edge.oidc import MIN_REFRESH_S, OidcSettings, OidcVerifier
from meshwright.app.store.principal import Scope
from tests.integration.security.oidc import CLAIMS, ISSUER, NOW_S, Issuer


@pytest.fixture(scope="module")
def rsa() -> Key:
    return RSAKey.generate_key(2048, {"kid": "one"})


@pytest.fixture
def issuer(rsa: Key) -> Issuer:
    return Issuer(rsa)


def test_a_token_is_its_tenants_caller(issuer: Issuer) -> None:
    caller = issuer.verifier().principal(issuer.token())
    assert (caller.tenant, caller.name) == ("acme", "oidc:ada")
    assert caller.scopes == {Scope.PLANS_READ, Scope.PLANS_WRITE}
    listed = issuer.verifier().principal(issuer.token(scope=["admin", 7]))
    assert listed.scopes == {Scope.ADMIN}


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": NOW_S - 600},
        {"exp": None},
        {"nbf": NOW_S + 600},
        {"aud": "another-service"},
        {"aud": None},
        {"iss": "https://evil.example"},
        {"tenant": None},
        {"tenant": ""},
        {"tenant": ["acme"]},
        {"sub": None},
        # What no column holds, or no log line shows.
        {"tenant": "a" * 65},
        {"tenant": "a\0b"},
        {"sub": "ada\0"},
    ],
)
def test_a_token_that_does_not_hold_is_refused(issuer: Issuer, claims: dict[str, Any]) -> None:
    with pytest.raises(AuthenticationError):
        issuer.verifier().principal(issuer.token(**claims))


def test_only_the_issuers_signature_counts(issuer: Issuer) -> None:
    stranger = RSAKey.generate_key(2048, {"kid": "one"})
    with pytest.raises(AuthenticationError):
        issuer.verifier().principal(issuer.token(key=stranger))


def test_a_public_key_is_no_shared_secret(issuer: Issuer) -> None:
    """The attack of RFC 8725, 2.1: HS256 with the public key as the secret."""
    assert isinstance(issuer.key, RSAKey)
    signed = ".".join(encoded(part) for part in ({"alg": "HS256", "kid": "one"}, CLAIMS))
    signature = hmac.new(issuer.key.as_pem(private=False), signed.encode(), hashlib.sha256).digest()
    with pytest.raises(AuthenticationError):
        issuer.verifier().principal(f"{signed}.{base64url(signature)}")


def encoded(part: dict[str, Any]) -> str:
    return base64url(json.dumps(part).encode())


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def test_an_unsigned_token_is_refused(issuer: Issuer) -> None:
    head, body, _ = issuer.token().split(".")
    for token in (f"{head}.{body}.", "eyJhbGciOiJub25lIn0." + body + ".", "a.b.c", "x" * 20_000):
        with pytest.raises(AuthenticationError):
            issuer.verifier().principal(token)


@pytest.mark.parametrize("name", ["alg", "kid", "typ", "crit", "b64", "jwk", "x5c", "zip"])
@pytest.mark.parametrize("value", [None, 7, 1.5, True, [], ["RS256"], {"a": 1}, "x"], ids=str)
def test_a_header_of_any_shape_is_refused_in_order(issuer: Issuer, name: str, value: object) -> None:
    """Anybody can send one: what joserfc takes for granted of it must not become a fault of ours."""
    _, body, signature = issuer.token(sub="mallory").split(".")
    for header in ({"alg": "RS256", "kid": "one", name: value}, {"alg": "RS256", name: value}):
        with pytest.raises(AuthenticationError):
            issuer.verifier().principal(f"{encoded(header)}.{body}.{signature[::-1]}")


def test_a_new_signing_key_is_fetched_but_not_for_every_stranger(issuer: Issuer) -> None:
    verifier = issuer.verifier()
    verifier.principal(issuer.token())
    issuer.key = ECKey.generate_key("P-256", {"kid": "two"})
    token = issuer.token(algorithm="ES256")
    for _ in range(5):
        with pytest.raises(AuthenticationError):
            verifier.principal(token)
    assert issuer.fetched == 1
    issuer.now_s += MIN_REFRESH_S + 1
    assert verifier.principal(token).tenant == "acme"
    assert issuer.fetched == 2


def test_keys_are_kept(issuer: Issuer) -> None:
    verifier = issuer.verifier()
    for _ in range(10):
        verifier.principal(issuer.token())
    assert issuer.fetched == 1


def test_a_configuration_of_another_issuer_is_not_followed(issuer: Issuer) -> None:
    issuer.issuer = "https://evil.example"
    with pytest.raises(IssuerUnavailableError):
        issuer.verifier().principal(issuer.token())


@pytest.mark.parametrize("answer", [None, [], {"issuer": ISSUER}, {"issuer": ISSUER, "jwks_uri": "file:///etc/passwd"}])
def test_a_configuration_without_keys_is_said(issuer: Issuer, answer: Any) -> None:
    verifier = OidcVerifier(OidcSettings(ISSUER, "meshwright"), lambda _: answer, lambda: NOW_S)
    with pytest.raises(IssuerUnavailableError):
        verifier.principal(issuer.token())
