"""``webhooks``: secrets that webhook calls are signed with, made beside the service's database."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from rich.table import Table

from meshwright.app.cli.commands.exits import print_json, say, tell
from meshwright.app.db.engine import open_engine
from meshwright.app.db.migrate import ensure_ready
from meshwright.app.errors import EXIT_GOOD
from meshwright.app.security.keeping import TENANT_PATTERN
from meshwright.app.security.schemas import made_webhook_secret_item, webhook_secret_item
from meshwright.app.security.webhook_secret_repository import StoredSecret, WebhookSecretRepository
from meshwright.app.security.webhook_secrets import end_secret, rotate_secret
from meshwright.app.settings import Settings
from meshwright.app.text.console import page_console
from meshwright.costmodels.errors import InvalidInputError


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
        table.add_row(secret.id, secret.tenant, f"{secret.created_at:%Y-%m-%d}", _state(secret, now))
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


def _state(secret: StoredSecret, now: datetime) -> str:
    if secret.ends_at is None:
        return "signs"
    return f"{'signs until' if secret.is_valid_at(now) else 'ended'} {secret.ends_at:%Y-%m-%d %H:%M} UTC"
