"""API keys: what is kept of them, when they hold, how they are rotated, on every database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from meshwright.app.base.errors import AuthenticationError, ForbiddenError, KeyNotFoundError
from meshwright.app.base.settings import Settings
from meshwright.app.edge.authentication import Authenticator
from meshwright.app.edge.keys import KeyWish, checked_prefix, create_key, revoke_key, rotate_key
from meshwright.app.store.engine import open_engine, reading
from meshwright.app.store.migrate import ensure_ready
from meshwright.app.store.principal import LOCAL, Principal, Scope
from meshwright.app.store.security import KeyRepository, StoredSecret, make_key, prefix_of
from meshwright.costmodels.errors import InvalidInputError

READ = frozenset({Scope.PLANS_READ})


@pytest.fixture
def keys(settings: Settings) -> KeyRepository:
    engine = open_engine(settings.database_url)
    ensure_ready(engine)
    return KeyRepository(engine)


def caller(keys: KeyRepository, text: str, *, days_from_now: float = 0) -> Principal:
    authenticator = Authenticator(keys, now=lambda: datetime.now(UTC) + timedelta(days=days_from_now))
    return authenticator.principal(f"Bearer {text}")


def test_a_key_is_its_tenants_caller(keys: KeyRepository) -> None:
    made = create_key(keys, KeyWish("acme", "ci", READ))
    found = caller(keys, made.text)
    assert (found.tenant, found.scopes, found.name) == ("acme", READ, f"key:{made.key.prefix}")
    assert keys.list("acme") == (made.key,)
    assert keys.list("other") == ()


def test_keys_and_secrets_hold_until_the_moment_that_they_end_and_not_in_it(keys: KeyRepository) -> None:
    end, before = datetime(2026, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
    key = create_key(keys, KeyWish("acme", "ci", READ)).key
    secret = StoredSecret("0" * 12, "acme", "salt", "sha256", created_at=end - timedelta(days=1), ends_at=end)
    for ending in (replace(key, expires_at=end), secret):
        assert ending.is_valid_at(end - before) and not ending.is_valid_at(end)
    assert not replace(key, revoked_at=end).is_valid_at(end - before), "a revoked key is none at any moment"


def test_the_database_does_not_hold_the_key(keys: KeyRepository, settings: Settings) -> None:
    made = create_key(keys, KeyWish("acme", "ci", READ))
    secret = made.text.split("_", 2)[2]
    with reading(open_engine(settings.database_url)) as connection:
        row = connection.execute(text("SELECT * FROM api_keys")).one()
    assert not any(secret in str(value) for value in row)


@pytest.mark.parametrize("wrong", ["", "mwk_", "nonsense", "mwk_000000000000_" + "A" * 43])
def test_what_is_no_key_is_refused(keys: KeyRepository, wrong: str) -> None:
    create_key(keys, KeyWish("acme", "ci", READ))
    with pytest.raises(AuthenticationError):
        caller(keys, wrong)


def test_the_prefix_alone_opens_nothing(keys: KeyRepository) -> None:
    made = create_key(keys, KeyWish("acme", "ci", READ))
    other = f"mwk_{made.key.prefix}_" + "A" * 43
    assert prefix_of(other) == made.key.prefix
    with pytest.raises(AuthenticationError):
        caller(keys, other)


def test_a_key_ends_when_it_expires(keys: KeyRepository) -> None:
    made = create_key(keys, KeyWish("acme", "ci", READ, days=10))
    assert caller(keys, made.text, days_from_now=9.9).tenant == "acme"
    with pytest.raises(AuthenticationError):
        caller(keys, made.text, days_from_now=10.1)


def test_a_revoked_key_is_refused_and_stays_revoked(keys: KeyRepository) -> None:
    made = create_key(keys, KeyWish("acme", "ci", READ))
    first = revoke_key(keys, made.key.prefix, tenant="acme")
    assert revoke_key(keys, made.text, tenant="acme") == first
    with pytest.raises(AuthenticationError):
        caller(keys, made.text)


def test_rotation_lets_both_keys_hold_for_the_grace_period(keys: KeyRepository) -> None:
    old = create_key(keys, KeyWish("acme", "ci", READ, days=30))
    new = rotate_key(keys, old.key.prefix, tenant="acme", grace=timedelta(days=2))
    assert caller(keys, old.text, days_from_now=1.9) != caller(keys, new.text, days_from_now=29.9)
    with pytest.raises(AuthenticationError):
        caller(keys, old.text, days_from_now=2.1)
    assert (new.key.tenant, new.key.scopes, new.key.name) == ("acme", READ, "ci")
    revoke_key(keys, old.key.prefix, tenant=None)
    with pytest.raises(InvalidInputError, match="ended"):
        rotate_key(keys, old.key.prefix, tenant="acme", grace=timedelta())


def test_rotation_does_not_lengthen_a_key(keys: KeyRepository) -> None:
    old = create_key(keys, KeyWish("acme", "ci", READ, days=1))
    rotate_key(keys, old.key.prefix, tenant="acme", grace=timedelta(days=30))
    with pytest.raises(AuthenticationError):
        caller(keys, old.text, days_from_now=1.1)


def test_keys_of_another_tenant_do_not_exist(keys: KeyRepository) -> None:
    made = create_key(keys, KeyWish("acme", "ci", READ))
    for act in (
        lambda: revoke_key(keys, made.key.prefix, tenant="rival"),
        lambda: rotate_key(keys, made.key.prefix, tenant="rival", grace=timedelta()),
    ):
        with pytest.raises(KeyNotFoundError):
            act()
    assert caller(keys, made.text).tenant == "acme"


def test_without_authentication_everybody_is_local() -> None:
    assert Authenticator(None).principal(None) is LOCAL
    assert LOCAL.may(Scope.CLUSTERS_WRITE)


def test_a_scope_is_demanded() -> None:
    caller = Principal("acme", "key:1", READ)
    caller.demand(Scope.PLANS_READ)
    with pytest.raises(ForbiddenError, match="plans:write"):
        caller.demand(Scope.PLANS_WRITE)


def test_a_pasted_key_is_not_shown_again() -> None:
    text = make_key().text
    assert checked_prefix(text) == text[4:16]
    with pytest.raises(InvalidInputError) as error:
        checked_prefix("secret-that-is-no-key")
    assert "secret-that" not in str(error.value)


@pytest.mark.parametrize(
    "wish",
    [
        {"tenant": "Acme"},
        {"tenant": ""},
        {"tenant": "a" * 65},
        {"name": ""},
        {"name": "a\nb"},
        {"scopes": frozenset()},
        {"days": 0},
        {"days": 100_000},
    ],
)
def test_a_key_that_can_not_be_is_refused(wish: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        KeyWish(**({"tenant": "acme", "name": "ci", "scopes": READ} | wish))  # type: ignore[arg-type]
