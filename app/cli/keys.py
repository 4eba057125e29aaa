"""The command line of ``keys``; ``app.cli.main`` holds it."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.app.cli.commands.exits import exits
from meshwright.app.cli.environment import environment_settings
from meshwright.app.cli.options import AsJson, group_of

keys = group_of("keys", purpose="Make and end the API keys of the service.")

Prefix = Annotated[str, typer.Argument(metavar="PREFIX", help="Prefix of the key, as 'keys list' shows it.")]


@keys.command("create")
@exits
def create_key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the key is for.")],
    scopes: Annotated[list[str], typer.Option("--scope", metavar="SCOPE", help="What it may do; can be given several times.")],
    tenant: Annotated[str, typer.Option(help="Whose plans it sees.")] = "default",
    days: Annotated[int | None, typer.Option(metavar="N", help="Days until it expires; without it, never.")] = None,
    as_json: AsJson = False,
) -> int:
    """Make an API key and print it, this once."""
    from meshwright.app.cli.commands.secrets.api_keys import read_scopes, run_create_key
    from meshwright.app.security.keeping import KeyWish

    return run_create_key(KeyWish(tenant, name, read_scopes(scopes), days), environment_settings(), as_json=as_json)


@keys.command("list")
@exits
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant.")] = None,
    as_json: AsJson = False,
) -> int:
    """List API keys; their text is not among what is kept."""
    from meshwright.app.cli.commands.secrets.api_keys import run_list_keys

    return run_list_keys(tenant, environment_settings(), as_json=as_json)


@keys.command("rotate")
@exits
def rotate_key(
    prefix: Prefix,
    grace_hours: Annotated[int, typer.Option(min=0, max=720, metavar="N", help="Hours that the old key still holds.")] = 24,
    as_json: AsJson = False,
) -> int:
    """Make a key in place of another, and print it."""
    from meshwright.app.cli.commands.secrets.api_keys import run_rotate_key

    return run_rotate_key(prefix, grace_hours=grace_hours, settings=environment_settings(), as_json=as_json)


@keys.command("revoke")
@exits
def revoke_key(prefix: Prefix) -> int:
    """Refuse an API key from now on."""
    from meshwright.app.cli.commands.secrets.api_keys import run_revoke_key

    return run_revoke_key(prefix, environment_settings())
