"""Shared by the tests of oidc and others: ISSUER, NOW_S, CLAIMS, Issuer, rsa ..."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from joserfc import jwt
from joserfc.jwk import Key, KeySet, RSAKey

from meshwright.app.edge.oidc import OidcSettings, OidcVerifier

ISSUER = "https://issuer.example"


NOW_S = 1_800_000_000


CLAIMS: dict[str, Any] = {
    "iss": ISSUER,
    "aud": "meshwright",
    "sub": "ada",
    "tenant": "acme",
    "exp": NOW_S + 600,
    "scope": "openid plans:read plans:write",
}


@dataclass
class Issuer:
    """An issuer with one key, a clock, and a count of how often its keys were fetched."""

    key: Key = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "one"}))
    issuer: str = ISSUER
    now_s: float = NOW_S
    fetched: int = 0

    def fetch(self, url: str) -> Any:
        if url == f"{ISSUER}/.well-known/openid-configuration":
            return {"issuer": self.issuer, "jwks_uri": f"{ISSUER}/keys"}
        assert url == f"{ISSUER}/keys"
        self.fetched += 1
        return KeySet([self.key]).as_dict(private=False)

    def verifier(self) -> OidcVerifier:
        return OidcVerifier(OidcSettings(ISSUER, "meshwright"), self.fetch, lambda: self.now_s)

    def token(self, *, algorithm: str = "RS256", key: Key | None = None, **claims: Any) -> str:
        chosen = key or self.key
        whole = {name: value for name, value in (CLAIMS | claims).items() if value is not None}
        header = {"alg": algorithm, "kid": chosen.kid}
        return jwt.encode(header, whole, chosen, algorithms=[algorithm])
