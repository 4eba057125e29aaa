"""The gate of a service, as its settings want it."""

from __future__ import annotations

from sqlalchemy import Engine

from meshwright.app.rest.gate import RequestGate
from meshwright.app.security.authentication import Authenticator
from meshwright.app.security.key_repository import KeyRepository
from meshwright.app.security.oidc import OidcSettings, OidcVerifier
from meshwright.app.security.rate_limit import RateLimiter
from meshwright.app.settings import Auth, Settings


def open_gate(settings: Settings, engine: Engine) -> RequestGate:
    """The gate over the keys in a database and, where the settings name one, the tokens of an issuer."""
    if settings.auth is Auth.OFF:
        return RequestGate(Authenticator(None), callers=None, strangers=None)
    oidc = None
    if settings.oidc_issuer:
        oidc = OidcVerifier(OidcSettings(settings.oidc_issuer, settings.oidc_audience, settings.oidc_tenant_claim))
    return RequestGate(
        Authenticator(KeyRepository(engine), oidc),
        callers=RateLimiter(settings.max_requests_per_s),
        strangers=RateLimiter(settings.max_failed_auths_per_s),
    )
