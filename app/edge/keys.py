"""Making, rotating and ending API keys: what the command line and the REST endpoints share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from meshwright.app.edge.lists import PRINTABLE
from meshwright.app.store.principal import Scope
from meshwright.app.store.security import PREFIX_PATTERN, ApiKey, KeyRepository, make_key
from meshwright.costmodels.errors import InvalidInputError

TENANT_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"
NAME_PATTERN = PRINTABLE.replace("*$", "{1,200}$")
MAX_DAYS = 3650


@dataclass(frozen=True, slots=True)
class MadeKey:
    """A stored key with its text, which nobody can see again."""

    text: str
    key: ApiKey


@dataclass(frozen=True, slots=True)
class KeyWish:
    """The wish for a new key; raises InvalidInputError for what no key can be."""

    tenant: str
    name: str
    scopes: frozenset[Scope]
    days: int | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(TENANT_PATTERN, self.tenant):
            allowed = "1 to 64 of a-z 0-9 . _ -, a letter or digit first"
            raise InvalidInputError("this is no name of a tenant", given=self.tenant, allowed=allowed)
        if not re.fullmatch(NAME_PATTERN, self.name):
            raise InvalidInputError("this is no name of a key", given=self.name, allowed="1 to 200 printable characters")
        if not self.scopes:
            raise InvalidInputError("a key needs a scope", allowed=", ".join(Scope))
        if self.days is not None and not 1 <= self.days <= MAX_DAYS:
            raise InvalidInputError("a key can't last so long", given=self.days, allowed=f"1 to {MAX_DAYS} days")


def create_key(keys: KeyRepository, wish: KeyWish) -> MadeKey:
    """Make and store a key."""
    now, new = datetime.now(UTC), make_key()
    expires_at = None if wish.days is None else now + timedelta(days=wish.days)
    key = ApiKey(new.prefix, new.sha256, wish.tenant, wish.name, wish.scopes, now, expires_at)
    keys.add(key)
    return MadeKey(new.text, key)


def rotate_key(keys: KeyRepository, prefix: str, *, tenant: str | None, grace: timedelta) -> MadeKey:
    """A new key in place of one, which holds for a grace period more.

    The new key lasts as long from now as the old one did from its making. Raises KeyNotFoundError, and InvalidInputError for
    a key that holds no more.
    """
    old, now = keys.get(checked_prefix(prefix), tenant=tenant), datetime.now(UTC)
    if not old.is_valid_at(now):
        raise InvalidInputError("this key has ended", given=prefix, allowed="a valid key", remedy="make a new one")
    new = make_key()
    expires_at = None if old.expires_at is None else now + (old.expires_at - old.created_at)
    key = ApiKey(new.prefix, new.sha256, old.tenant, old.name, old.scopes, now, expires_at)
    keys.add(key)
    keys.expire(old.prefix, tenant=tenant, at=now + grace)
    return MadeKey(new.text, key)


def revoke_key(keys: KeyRepository, prefix: str, *, tenant: str | None) -> ApiKey:
    """End a key now; raises KeyNotFoundError."""
    return keys.revoke(checked_prefix(prefix), tenant=tenant, at=datetime.now(UTC))


def checked_prefix(text: str) -> str:
    """The prefix in a text that may be one, or a whole key; raises InvalidInputError."""
    prefix = text.removeprefix("mwk_")[:12]
    if not PREFIX_PATTERN.fullmatch(prefix):
        # A whole key may have been pasted here: it is not shown again.
        raise InvalidInputError("this is no prefix of an API key", allowed="12 hexadecimal digits, as 'keys list' shows them")
    return prefix
