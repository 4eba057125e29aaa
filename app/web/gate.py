"""The gate before the endpoints: every one of them names the scope it needs, and gets the caller that has it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from fastapi.security.http import HTTPAuthorizationCredentials
from sqlalchemy import Engine

from meshwright.app.base.errors import AuthenticationError, ForbiddenError, IssuerUnavailableError, RateLimitedError
from meshwright.app.base.settings import Auth, Settings
from meshwright.app.edge.authentication import Authenticator, RateLimiter, is_token
from meshwright.app.edge.loopback import is_called_by_loopback
from meshwright.app.edge.oidc import OidcSettings, OidcVerifier
from meshwright.app.store.engine import read_soon
from meshwright.app.store.principal import Principal, Scope
from meshwright.app.store.quota import check_room_now
from meshwright.app.store.security import KeyRepository
from meshwright.costmodels.errors import MeshwrightError

_bearer = HTTPBearer(
    auto_error=False, scheme_name="bearer", description="An API key of 'meshwright keys create', or a token of the issuer."
)

TURNED_AWAY_S = 1.0
"""The answer to a stranger who was refused too often comes after this: one that asks again as soon as it is answered is heard
once a second over each of its connections, whose number is limited."""


class RequestGate:
    """Lets requests in: tells their callers, and counts what they ask.

    callers    requests a second of each caller; None sets no limit
    strangers  failed attempts a second from one address; None sets no limit
    openness   whether it asks who calls, or lets everybody in who calls this machine by a name of its own
    """

    def __init__(
        self,
        authenticator: Authenticator,
        callers: RateLimiter | None,
        strangers: RateLimiter | None,
        openness: Auth = Auth.REQUIRED,
    ):
        self._authenticator, self._callers, self._strangers = authenticator, callers, strangers
        self._openness = openness

    async def admit(self, request: Request, shown: str | None = None) -> Principal:
        """The caller of a request.

        Raises AuthenticationError, RateLimitedError, StoreError, IssuerUnavailableError; ForbiddenError for a call by a name of
        another machine where nobody shows who he is.

        ``shown`` is what the caller shows where that is not in the header: the key of a page's cookie.
        """
        if self._openness is Auth.OFF:
            _require_loopback_name(request)
        shown = shown or request.headers.get("authorization")
        peer = request.client.host if request.client else ""
        if self._strangers is not None and is_token(shown):
            # Verifying a token is work, and may make the issuer be asked.
            await _turn_away(self._strangers.check, peer)
        try:
            principal = await self._authenticator.caller(shown)
        except (AuthenticationError, IssuerUnavailableError):
            # A token that nobody can verify now may be forged: it counts as one.
            if self._strangers is not None:
                await _turn_away(self._strangers.take, peer)
            raise
        if self._callers is not None:
            self._callers.take(f"{principal.tenant}/{principal.name}")
        return principal

    async def is_admitted(self, request: Request, shown: str | None = None) -> bool:
        """Return True unless the caller of a request that was admitted would be refused now: a key may have been revoked."""
        try:
            await self._authenticator.caller(shown or request.headers.get("authorization"))
        except AuthenticationError:
            return False
        except MeshwrightError:
            return True  # That can't be told now.
        return True


def _require_loopback_name(request: Request) -> None:
    host = request.headers.get("host")
    if not is_called_by_loopback(host):
        raise ForbiddenError(
            "a service without authentication is called by a name of this machine alone",
            given=f"Host: {host}",
            allowed="127.0.0.1, [::1] or localhost",
            remedy="call it by one of these; for calls from elsewhere unset MESHWRIGHT_AUTH, and make keys",
        )


async def _turn_away(ask: Callable[[str], None], peer: str) -> None:
    """Ask a limit about a peer; raises its RateLimitedError after a while."""
    try:
        ask(peer)
    except RateLimitedError:
        await asyncio.sleep(TURNED_AWAY_S)
        raise


def needs(scope: Scope) -> Callable[..., Awaitable[Principal]]:
    """A dependency that gives the caller if it holds a scope; raises ForbiddenError and what ``RequestGate.admit`` raises."""

    async def caller(
        request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)] = None
    ) -> Principal:
        gate: RequestGate = request.app.state.gate
        principal = await gate.admit(request)
        request.state.principal = principal
        principal.demand(scope)
        return principal

    return caller


def keeps(scope: Scope) -> Callable[..., Awaitable[Principal]]:
    """As ``needs``, for endpoints that store what they are sent; raises QuotaError where the caller's tenant may not."""

    admitted = needs(scope)

    async def caller(
        request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)] = None
    ) -> Principal:
        principal = await admitted(request, credentials)
        engine, settings = request.app.state.engine, request.app.state.settings
        await read_soon(engine, check_room_now, engine, principal.tenant, settings.max_stored_bytes)
        return principal

    return caller


Reader = Annotated[Principal, Depends(needs(Scope.PLANS_READ))]
Writer = Annotated[Principal, Depends(needs(Scope.PLANS_WRITE))]
CalibrationWriter = Annotated[Principal, Depends(needs(Scope.CALIBRATIONS_WRITE))]
ClusterWriter = Annotated[Principal, Depends(needs(Scope.CLUSTERS_WRITE))]
CheckKeeper = Annotated[Principal, Depends(keeps(Scope.PLANS_WRITE))]
CalibrationKeeper = Annotated[Principal, Depends(keeps(Scope.CALIBRATIONS_WRITE))]
ClusterKeeper = Annotated[Principal, Depends(keeps(Scope.CLUSTERS_WRITE))]
Admin = Annotated[Principal, Depends(needs(Scope.ADMIN))]


# The gate of a service, as its settings want it.


def open_gate(settings: Settings, engine: Engine) -> RequestGate:
    """The gate over the keys in a database and, where the settings name one, the tokens of an issuer."""
    if settings.auth is Auth.OFF:
        return RequestGate(Authenticator(None), callers=None, strangers=None, openness=Auth.OFF)
    oidc = None
    if settings.oidc_issuer:
        oidc = OidcVerifier(OidcSettings(settings.oidc_issuer, settings.oidc_audience, settings.oidc_tenant_claim))
    return RequestGate(
        Authenticator(KeyRepository(engine), oidc),
        callers=RateLimiter(settings.max_requests_per_s),
        strangers=RateLimiter(settings.max_failed_auths_per_s),
    )
