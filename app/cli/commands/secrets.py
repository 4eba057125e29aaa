"""``keys``: API keys of a service, made beside its database."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from rich.table import Table

from meshwright.app.base.console import page_console
from meshwright.app.base.errors import EXIT_GOOD
from meshwright.app.base.settings import Settings
from meshwright.app.cli.commands.exits import print_json, say, tell
from meshwright.app.edge.keys import TENANT_PATTERN, KeyWish, MadeKey, create_key, revoke_key, rotate_key
from meshwright.app.edge.schemas import key_item, made_key_item, made_webhook_secret_item, webhook_secret_item
from meshwright.app.edge.webhook_secrets import end_secret, rotate_secret
from meshwright.app.store.engine import open_engine
from meshwright.app.store.migrate import ensure_ready
from meshwright.app.store.principal import Scope
from meshwright.app.store.security import ApiKey, KeyRepository, StoredSecret, WebhookSecretRepository
from meshwright.costmodels.errors import InvalidInputError


def run_create_key(wish: KeyWish, settings: Settings, *, as_json: bool) -> int:
    """Make a key and print it, this once."""
    return _print_made(create_key(_keys(settings), wish), as_json=as_json)


def run_rotate_key(prefix: str, *, grace_hours: int, settings: Settings, as_json: bool) -> int:
    """Make a key in place of one, which holds for some hours more."""
    made = rotate_key(_keys(settings), prefix, tenant=None, grace=timedelta(hours=grace_hours))
    return _print_made(made, as_json=as_json)


def run_revoke_key(prefix: str, settings: Settings) -> int:
    """End a key now."""
    key = revoke_key(_keys(settings), prefix, tenant=None)
    tell(f"{key.prefix} ({key.tenant}, {key.name}) is refused from now on")
    return EXIT_GOOD


def run_list_keys(tenant: str | None, settings: Settings, *, as_json: bool) -> int:
    """Print the keys of a tenant, or of all."""
    keys = _keys(settings).list(tenant)
    if as_json:
        print_json({"keys": [{"tenant": key.tenant, **key_item(key).model_dump(mode="json")} for key in keys]})
        return EXIT_GOOD
    now = datetime.now(UTC)
    table = Table("PREFIX", "TENANT", "NAME", "SCOPES", "STATE", box=None, header_style="bold")
    for key in keys:
        table.add_row(key.prefix, key.tenant, key.name, " ".join(sorted(key.scopes)), _state(key, now))
    page_console().print(table if keys else "there are no keys")
    return EXIT_GOOD


def read_scopes(names: list[str]) -> frozenset[Scope]:
    """Scopes by their names; raises InvalidInputError with the names there are."""
    unknown = [name for name in names if name not in set(Scope)]
    if unknown:
        raise InvalidInputError("there is no such scope", given=", ".join(unknown), allowed=", ".join(Scope))
    return frozenset(Scope(name) for name in names)


def _keys(settings: Settings) -> KeyRepository:
    engine = open_engine(settings.database_url)
    ensure_ready(engine)
    return KeyRepository(engine)


def _print_made(made: MadeKey, *, as_json: bool) -> int:
    if as_json:
        print_json({"tenant": made.key.tenant, **made_key_item(made).model_dump(mode="json")})
        return EXIT_GOOD
    print(made.text)
    say(
        f"key {made.key.prefix} of tenant {made.key.tenant}, {_state(made.key, datetime.now(UTC))}. "
        "Keep it now: it is not shown again."
    )
    return EXIT_GOOD


def _state(key: ApiKey, now: datetime) -> str:
    if key.revoked_at is not None:
        return f"revoked {key.revoked_at:%Y-%m-%d}"
    if key.expires_at is None:
        return "valid"
    return f"{'valid until' if key.is_valid_at(now) else 'expired'} {key.expires_at:%Y-%m-%d}"


# ``webhooks``: secrets that webhook calls are signed with, made beside the service's database.


def run_rotate_secret(tenant: str, *, grace_hours: int, settings: Settings, as_json: bool) -> int:
    """Make a secret and print it, this once."""
    if not re.fullmatch(TENANT_PATTERN, tenant):
        allowed = "1 to 64 of a-z 0-9 . _ -, a letter or digit first"
        raise InvalidInputError("this is no name of a tenant", given=tenant, allowed=allowed)
    made = rotate_secret(_secrets(settings), tenant, service_secret=settings.webhook_secret, grace=timedelta(hours=grace_hours))
    if as_json:
        print_json({"tenant": tenant, **made_webhook_secret_item(made).model_dump(mode="json")})
        return EXIT_GOOD
    print(made.text)
    say(f"webhook secret {made.stored.id} of tenant {tenant}. Keep it now: it is not shown again.")
    return EXIT_GOOD


def run_list_secrets(tenant: str | None, settings: Settings, *, as_json: bool) -> int:
    """Print the secrets of a tenant, or of all, without their texts."""
    found = _secrets(settings).list(tenant)
    if as_json:
        items = [{"tenant": secret.tenant, **webhook_secret_item(secret).model_dump(mode="json")} for secret in found]
        print_json({"webhook_secrets": items})
        return EXIT_GOOD
    now = datetime.now(UTC)
    table = Table("ID", "TENANT", "MADE", "STATE", box=None, header_style="bold")
    for secret in found:
        table.add_row(secret.id, secret.tenant, f"{secret.created_at:%Y-%m-%d}", _secret_state(secret, now))
    page_console().print(table if found else "there are no webhook secrets")
    return EXIT_GOOD


def run_end_secret(secret_id: str, settings: Settings) -> int:
    """End a secret now."""
    secret = end_secret(_secrets(settings), secret_id, tenant=None)
    tell(f"{secret.id} ({secret.tenant}) signs no call from now on")
    return EXIT_GOOD


def _secrets(settings: Settings) -> WebhookSecretRepository:
    engine = open_engine(settings.database_url)
    ensure_ready(engine)
    return WebhookSecretRepository(engine)


def _secret_state(secret: StoredSecret, now: datetime) -> str:
    if secret.ends_at is None:
        return "signs"
    return f"{'signs until' if secret.is_valid_at(now) else 'ended'} {secret.ends_at:%Y-%m-%d %H:%M} UTC"
