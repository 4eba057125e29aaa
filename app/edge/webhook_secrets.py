"""Secrets that calls to a tenant's receivers are signed with: one of its own, two while one takes another's place.

A secret is HMAC-SHA-256 of the tenant and a random salt under the service's own secret. The database holds the salt, the
environment holds the service's secret: neither alone can sign a call.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from meshwright.app.base.errors import NoSuchError, WebhookSecretError
from meshwright.app.store.engine import writing
from meshwright.app.store.security import StoredSecret, WebhookSecretRepository
from meshwright.costmodels.errors import InvalidInputError

MOST_VALID = 2
"""Secrets of a tenant that sign at once: the one that goes and the one that comes."""
ID_BYTES = 6
ID_PATTERN = re.compile(r"[0-9a-f]{12}")
SALT_BYTES = 32
_PREFIX = "mws_"


@dataclass(frozen=True, slots=True)
class MadeSecret:
    """A stored secret with its text, which nobody can see again."""

    text: str
    stored: StoredSecret


def rotate_secret(secrets_of: WebhookSecretRepository, tenant: str, *, service_secret: str, grace: timedelta) -> MadeSecret:
    """Make a tenant's first secret, or one in place of its newest, which signs beside it for a grace period more.

    Without a grace period all others end now. Raises InvalidInputError where two sign already, or where the service has no
    secret of its own.
    """
    if not service_secret:
        raise InvalidInputError(
            "the service signs no webhook calls", allowed="a service with a secret", remedy="set MESHWRIGHT_WEBHOOK_SECRET"
        )
    now, salt = datetime.now(UTC), secrets.token_hex(SALT_BYTES)
    text = _text(service_secret, tenant, salt)
    made = StoredSecret(secrets.token_hex(ID_BYTES), tenant, salt, _sha256(text), now, None)
    with writing(secrets_of.engine) as connection:
        secrets_of.lock(connection)
        valid = [secret for secret in secrets_of.all_with(connection, tenant) if secret.is_valid_at(now)]
        if grace and len(valid) >= MOST_VALID:
            raise InvalidInputError(
                "two webhook secrets sign already",
                given=", ".join(secret.id for secret in valid),
                allowed=f"a new one beside {MOST_VALID - 1}",
                remedy="end one, or ask for no grace period, which ends both",
            )
        for secret in valid:
            secrets_of.end(connection, secret.id, tenant=tenant, at=now + grace)
        secrets_of.add(connection, made)
    return MadeSecret(text, made)


def end_secret(secrets_of: WebhookSecretRepository, secret_id: str, *, tenant: str | None) -> StoredSecret:
    """Sign nothing with a secret from now on; raises NoSuchError, for one of another tenant as well."""
    if not ID_PATTERN.fullmatch(secret_id):
        # A whole secret may have been pasted here: it is not shown again.
        allowed = "12 hexadecimal digits, as the list shows them"
        raise InvalidInputError("this is no identifier of a webhook secret", allowed=allowed)
    found, now = secrets_of.find(secret_id), datetime.now(UTC)
    if found is None or tenant not in (None, found.tenant):
        raise NoSuchError("no webhook secret has this identifier", given=secret_id)
    if found.is_valid_at(now):
        with writing(secrets_of.engine) as connection:
            secrets_of.end(connection, secret_id, tenant=found.tenant, at=now)
    return secrets_of.find(secret_id) or found


def signing_secrets(secrets_of: WebhookSecretRepository, tenant: str, *, service_secret: str) -> tuple[str, ...]:
    """Return what a tenant's calls are signed with, the newest first; the service's secret for a tenant without its own.

    Raises WebhookSecretError when the tenant's were made under another secret of the service.
    """
    now = datetime.now(UTC)
    valid = [secret for secret in secrets_of.list(tenant) if secret.is_valid_at(now)]
    if not valid:
        return (service_secret,)
    texts = [(secret, _text(service_secret, tenant, secret.salt)) for secret in reversed(valid)]
    usable = tuple(text for secret, text in texts if hmac.compare_digest(_sha256(text), secret.sha256))
    if not usable:
        raise WebhookSecretError(
            "the tenant's webhook secrets were made under another MESHWRIGHT_WEBHOOK_SECRET",
            remedy="rotate them without a grace period, or set the old secret",
        )
    return usable


def _text(service_secret: str, tenant: str, salt: str) -> str:
    mac = hmac.new(service_secret.encode(), f"meshwright webhook secret\n{tenant}\n{salt}".encode(), hashlib.sha256)
    return _PREFIX + base64.urlsafe_b64encode(mac.digest()).decode().rstrip("=")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
