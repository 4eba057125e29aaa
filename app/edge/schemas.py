"""The bodies and answers of the endpoints of keys, of webhook secrets and of the audit log."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from meshwright.app.edge.keys import MAX_DAYS, NAME_PATTERN, MadeKey
from meshwright.app.edge.webhook_secrets import MadeSecret
from meshwright.app.store.principal import Scope
from meshwright.app.store.security import ApiKey, StoredAuditEntry, StoredSecret

STRICT = ConfigDict(extra="forbid", frozen=True)


class NewKeyDocument(BaseModel):
    """A wish for an API key of the caller's own tenant."""

    model_config = STRICT

    name: str = Field(pattern=NAME_PATTERN, examples=["nightly-ci"])
    scopes: list[Scope] = Field(min_length=1, max_length=len(Scope), examples=[[Scope.PLANS_READ, Scope.PLANS_WRITE]])
    expires_in_days: int | None = Field(default=None, ge=1, le=MAX_DAYS)


class RotationDocument(BaseModel):
    """The time for which what is replaced, a key or a webhook secret, holds beside the new one."""

    model_config = STRICT

    grace_hours: int = Field(default=24, ge=0, le=24 * 30)


class KeyItem(BaseModel):
    """An API key, without its text."""

    model_config = STRICT

    prefix: str
    name: str
    scopes: list[Scope]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class MadeKeyItem(KeyItem):
    """A new API key with its text, which is shown this once."""

    key: str


class KeyList(BaseModel):
    """The tenant's API keys, oldest first."""

    model_config = STRICT

    keys: list[KeyItem]


class WebhookSecretItem(BaseModel):
    """A secret that webhook calls are signed with, without its text. ``ends_at`` says from when nothing is signed with it."""

    model_config = STRICT

    id: str
    created_at: datetime
    ends_at: datetime | None


class MadeWebhookSecretItem(WebhookSecretItem):
    """A new secret with its text, which is shown this once."""

    secret: str


class WebhookSecretList(BaseModel):
    """The tenant's webhook secrets, oldest first."""

    model_config = STRICT

    webhook_secrets: list[WebhookSecretItem]


class AuditItem(BaseModel):
    """An entry of the audit log."""

    model_config = STRICT

    at: datetime
    principal: str
    action: str
    target: str
    status: int
    request_id: str


class AuditPage(BaseModel):
    """A page of the audit log, newest first."""

    model_config = STRICT

    entries: list[AuditItem]
    next_cursor: str | None = Field(description="Give it as 'cursor' to get the next page; null on the last one.")


def key_item(key: ApiKey) -> KeyItem:
    """A key as an item of a list."""
    return KeyItem(
        prefix=key.prefix,
        name=key.name,
        scopes=sorted(key.scopes),
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
    )


def made_key_item(made: MadeKey) -> MadeKeyItem:
    """A new key with its text."""
    return MadeKeyItem(key=made.text, **dict(key_item(made.key)))


def webhook_secret_item(secret: StoredSecret) -> WebhookSecretItem:
    """A secret as an item of a list."""
    return WebhookSecretItem(id=secret.id, created_at=secret.created_at, ends_at=secret.ends_at)


def made_webhook_secret_item(made: MadeSecret) -> MadeWebhookSecretItem:
    """A new secret with its text."""
    return MadeWebhookSecretItem(secret=made.text, **dict(webhook_secret_item(made.stored)))


def audit_item(entry: StoredAuditEntry) -> AuditItem:
    """An entry as an item of a list."""
    return AuditItem(**{name: getattr(entry, name) for name in AuditItem.model_fields})
