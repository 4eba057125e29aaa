"""An issuer that hangs or fails, forged tokens and revoked keys: none holds others up or lets anybody in."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine, func, select
from starlette.requests import Request

from meshwright.app.base.errors import AuthenticationError, IssuerUnavailableError, RateLimitedError
from meshwright.app.base.settings import Auth, Settings
from meshwright.app.edge.authentication import Authenticator, RateLimiter
from meshwright.app.edge.keys import KeyWish, create_key, revoke_key
from meshwright.app.edge.oidc import KEYS_FRESH_S, MIN_REFRESH_S, OidcVerifier
from meshwright.app.edge.outgoing import call_once
from meshwright.app.store.engine import open_engine, reading
from meshwright.app.store.migrate import upgrade
from meshwright.app.store.principal import Principal, Scope
from meshwright.app.store.security import KeyRepository
from meshwright.app.store.tables import audit
from meshwright.app.web.gate import TURNED_AWAY_S, RequestGate
from tests.attacks.dripping import dripping
from tests.attacks.issuer import forged
from tests.attacks.served import served
from tests.integration.security.oidc import Issuer
from tests.support.requests_given import training
from tests.support.service import running_service


class Hanging(Issuer):
    """An issuer that answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.answers, self.is_asked = threading.Event(), threading.Event()
        self.answers.set()

    def fetch(self, url: str) -> object:
        self.is_asked.set()
        assert self.answers.wait(60)
        return super().fetch(url)


def test_valid_tokens_wait_for_no_issuer_that_hangs_over_a_forged_one() -> None:
    issuer = Hanging()
    verifier = issuer.verifier()
    assert verifier.principal(issuer.token()).tenant == "acme"
    issuer.now_s += MIN_REFRESH_S + 1
    issuer.answers.clear()
    issuer.is_asked.clear()

    def try_in() -> None:
        with pytest.raises(AuthenticationError):
            verifier.principal(forged())

    stranger = threading.Thread(target=try_in, daemon=True)
    stranger.start()
    assert issuer.is_asked.wait(30)
    # The issuer hangs for as long as these take.
    with pytest.raises(AuthenticationError):
        verifier.principal(forged())
    assert verifier.principal(issuer.token()).tenant == "acme"
    assert stranger.is_alive()
    issuer.answers.set()
    stranger.join(30)


def test_an_issuer_that_fails_is_asked_once_for_many_tokens_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    issuer, asked = Issuer(), []

    def fail(url: str) -> object:
        asked.append(url)
        raise IssuerUnavailableError("the token issuer answers with status 503")

    good = issuer.verifier()
    good.principal(issuer.token())
    verifier = OidcVerifier(good._settings, fail, lambda: issuer.now_s)
    with caplog.at_level(logging.INFO):
        for _ in range(10):
            with pytest.raises(IssuerUnavailableError):
                verifier.principal(forged())
    assert len(asked) == 1
    assert [record.exc_info for record in caplog.records] == [None], "one line, without a traceback"


def test_keys_serve_on_while_the_issuer_is_away_but_not_for_ever() -> None:
    issuer = Issuer()
    verifier = issuer.verifier()
    verifier.principal(issuer.token())
    issuer.issuer = "gone"
    issuer.now_s += KEYS_FRESH_S + 1
    assert verifier.principal(issuer.token(exp=issuer.now_s + 60)).tenant == "acme"
    issuer.now_s += KEYS_FRESH_S
    with pytest.raises(IssuerUnavailableError):
        verifier.principal(issuer.token(exp=issuer.now_s + 60))


@pytest.mark.parametrize("scope", [[["admin"]], [{"admin": 1}], ["admin", ["plans:read"]]])
def test_a_nested_scope_is_refused(scope: object) -> None:
    issuer = Issuer()
    with pytest.raises(AuthenticationError):
        issuer.verifier().principal(issuer.token(scope=scope))


@pytest.mark.parametrize("what", ["header", "informational", "body"])
def test_a_server_that_drips_is_left_at_the_deadline(what: str) -> None:
    with dripping(what) as url, pytest.raises(httpx.TimeoutException):
        call_once("POST", url, within_s=1.0, body=b"{}", max_answer_bytes=2**20)


class Counting(OidcVerifier):
    """A verifier that counts the tokens it is shown."""

    shown = 0

    def principal(self, token: str) -> Principal:
        self.shown += 1
        return super().principal(token)


def with_database(tmp_path: Path) -> tuple[Settings, Engine]:
    settings = replace(Settings(f"sqlite:///{tmp_path / 'plans.db'}"), auth=Auth.REQUIRED)
    engine = open_engine(settings.database_url)
    upgrade(engine)
    return settings, engine


def showing(credentials: str, peer: str) -> Request:
    headers = [(b"authorization", f"Bearer {credentials}".encode())]
    return Request({"type": "http", "headers": headers, "client": (peer, 1)})


def test_an_address_with_too_many_refusals_is_turned_away_before_its_token_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.app.web.gate.TURNED_AWAY_S", 0.0)
    issuer, (_, engine) = Issuer(), with_database(tmp_path)
    keys, good = KeyRepository(engine), issuer.verifier()
    verifier = Counting(good._settings, issuer.fetch, lambda: issuer.now_s)
    key = create_key(keys, KeyWish("acme", "ci", frozenset({Scope.ADMIN}), None)).text
    # A clock that stands still: nobody is forgiven while the test runs.
    gate = RequestGate(Authenticator(keys, verifier), callers=None, strangers=RateLimiter(1, clock=lambda: 0.0))

    def admit(credentials: str, peer: str) -> str:
        return asyncio.run(gate.admit(showing(credentials, peer))).tenant

    for _ in range(2):
        with pytest.raises(AuthenticationError):
            admit(forged(), "192.0.2.1")
    for token in (forged(), issuer.token()):
        with pytest.raises(RateLimitedError):
            admit(token, "192.0.2.1")
    assert verifier.shown == 2
    assert admit(issuer.token(), "192.0.2.2") == "acme", "another address is none of it"
    assert admit(key, "192.0.2.1") == "acme", "a good API key needs no verifying"


def test_tokens_that_nobody_can_verify_count_as_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An issuer that is away gives no one tries without end: each would take a thread."""
    monkeypatch.setattr("meshwright.app.web.gate.TURNED_AWAY_S", 0.0)
    issuer, (_, engine) = Issuer(), with_database(tmp_path)

    def fail(url: str) -> object:
        raise IssuerUnavailableError("the token issuer answers with status 503")

    verifier = Counting(issuer.verifier()._settings, fail, lambda: issuer.now_s)
    gate = RequestGate(Authenticator(KeyRepository(engine), verifier), None, RateLimiter(1, clock=lambda: 0.0))
    for error in (IssuerUnavailableError, IssuerUnavailableError, RateLimitedError, RateLimitedError):
        with pytest.raises(error):
            asyncio.run(gate.admit(showing(forged(), "192.0.2.1")))
    assert verifier.shown == 2


def test_callers_of_one_name_in_two_tenants_have_a_rate_each(tmp_path: Path) -> None:
    """An issuer may give the same subject to people of two tenants; a stranger must not use up the other's requests."""
    issuer, (_, engine) = Issuer(), with_database(tmp_path)
    limiter = RateLimiter(0.5, clock=lambda: 0.0)
    gate = RequestGate(Authenticator(KeyRepository(engine), issuer.verifier()), callers=limiter, strangers=None)
    claim = issuer.verifier()._settings.tenant_claim
    one, other = (showing(issuer.token(**{claim: tenant}), "192.0.2.1") for tenant in ("acme", "umbra"))
    assert asyncio.run(gate.admit(one)).name == asyncio.run(gate.admit(other)).name
    for request in (one, other):
        with pytest.raises(RateLimitedError):
            asyncio.run(gate.admit(request))


@pytest.mark.parametrize("credentials", [forged(), f"mwk_{'0' * 12}_{'a' * 43}"], ids=["token", "key"])
def test_who_was_refused_too_often_waits_for_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, credentials: str
) -> None:
    """Only then: the first refusals come at once."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    issuer, (_, engine) = Issuer(), with_database(tmp_path)
    limiter = RateLimiter(1, clock=lambda: 0.0)
    gate = RequestGate(Authenticator(KeyRepository(engine), issuer.verifier()), callers=None, strangers=limiter)
    monkeypatch.setattr("meshwright.app.web.gate.asyncio.sleep", sleep)
    for error in (AuthenticationError, AuthenticationError, RateLimitedError):
        assert slept == []
        with pytest.raises(error):
            asyncio.run(gate.admit(showing(credentials, "192.0.2.1")))
    assert slept == [TURNED_AWAY_S]


@pytest.mark.slow
@pytest.mark.parametrize(("proxies", "last"), [("", 429), ("127.0.0.1", 401)], ids=["stranger", "proxy"])
def test_who_asks_is_believed_of_a_trusted_proxy_alone(tmp_path: Path, proxies: str, last: int) -> None:
    # A new address with every request: a stranger would never be one that was refused before.
    limits = {"MESHWRIGHT_AUTH": "required", "MESHWRIGHT_MAX_FAILED_AUTHS_PER_S": "1", "MESHWRIGHT_TRUSTED_PROXIES": proxies}
    with served(f"sqlite:///{tmp_path / 'plans.db'}", tmp_path, limits) as service:
        asked = [
            httpx.get(f"{service.url}/v1/plans", headers={"x-forwarded-for": f"192.0.2.{number}"}).status_code
            for number in range(8)
        ]
    assert asked[0] == 401
    assert (429 in asked) is (last == 429)


def test_refusals_by_the_thousand_leave_few_rows_in_the_audit_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One row, and another after a quarter of an hour.
    monkeypatch.setattr("meshwright.app.edge.audit.MAX_UNKNOWN_PER_S", 0.001)
    settings, engine = with_database(tmp_path)
    reader = create_key(KeyRepository(engine), KeyWish("acme", "ci", frozenset({Scope.PLANS_READ}), None)).text
    with running_service(replace(settings, max_failed_auths_per_s=1000), None) as client:
        for _ in range(100):
            assert client.get("/v1/plans").status_code == 401
        for _ in range(5):
            assert client.get("/v1/keys", headers={"authorization": f"Bearer {reader}"}).status_code == 403
    with reading(engine) as connection:
        kept = dict(connection.execute(select(audit.c.tenant, func.count()).group_by(audit.c.tenant)).all())
    assert kept == {"": 1, "acme": 5}, "those of callers that are known are all kept"


def test_a_revoked_key_ends_its_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.app.web.jobs.KEEP_ALIVE_S", 0.2)
    settings, engine = with_database(tmp_path)
    keys = KeyRepository(engine)
    made = create_key(keys, KeyWish("acme", "ci", frozenset({Scope.ADMIN}), None))
    shown = {"authorization": f"Bearer {made.text}", "prefer": "respond-async"}
    with running_service(settings, None) as client:
        job = client.post("/v1/plans", json=training(), headers=shown).json()
        with client.stream("GET", job["events"], headers=shown, timeout=60) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("event: job")
            revoke_key(keys, made.key.prefix, tenant="acme")
            # It ends by itself; the client's time-out would raise.
            list(lines)
        assert client.get(job["events"], headers=shown).status_code == 401
