"""``keys``: API keys of a service, made beside its database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rich.table import Table

from meshwright.app.cli.commands.exits import print_json, say, tell
from meshwright.app.db.engine import open_engine
from meshwright.app.db.migrate import ensure_ready
from meshwright.app.errors import EXIT_GOOD
from meshwright.app.security.api_keys import ApiKey
from meshwright.app.security.keeping import KeyWish, MadeKey, create_key, revoke_key, rotate_key
from meshwright.app.security.key_repository import KeyRepository
from meshwright.app.security.principal import Scope
from meshwright.app.security.schemas import key_item, made_key_item
from meshwright.app.settings import Settings
from meshwright.app.text.console import page_console
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
