"""API keys: ``mwk_<prefix>_<secret>``. The prefix names a key in lists and logs; of the rest only a hash is kept.

A key holds 256 random bits, so that one round of SHA-256 is as good as a slow hash and costs a request nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from datetime import datetime

from meshwright.app.security.principal import Principal, Scope

KEY_PATTERN = re.compile(r"mwk_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
PREFIX_PATTERN = re.compile(r"[0-9a-f]{12}")
PREFIX_BYTES = 6
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made: the only moment at which its text is known."""

    text: str
    prefix: str
    sha256: str


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as it is stored.

    prefix       names it
    sha256       of its whole text, hexadecimal
    expires_at   from when it is refused; None for never
    revoked_at   since when it is refused; None while it is not
    """

    prefix: str
    sha256: str
    tenant: str
    name: str
    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def principal(self) -> Principal:
        """The caller that shows this key."""
        return Principal(self.tenant, f"key:{self.prefix}", self.scopes)

    def is_valid_at(self, moment: datetime) -> bool:
        """Return True if the key is neither expired nor revoked."""
        return self.revoked_at is None and (self.expires_at is None or moment < self.expires_at)

    def matches(self, text: str) -> bool:
        """Return True if a text is this key, compared in constant time."""
        return hmac.compare_digest(self.sha256, sha256_of(text))


def make_key() -> NewKey:
    """A key of random bits."""
    prefix = secrets.token_hex(PREFIX_BYTES)
    text = f"mwk_{prefix}_{secrets.token_urlsafe(SECRET_BYTES)}"
    return NewKey(text, prefix, sha256_of(text))


def prefix_of(text: str) -> str | None:
    """The prefix in a key's text; None for what is no key."""
    found = KEY_PATTERN.fullmatch(text)
    return None if found is None else found[1]


def sha256_of(text: str) -> str:
    """Hexadecimal SHA-256 of a key's text."""
    return hashlib.sha256(text.encode()).hexdigest()
