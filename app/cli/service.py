"""The command line of running Meshwright: its service, its workers, its store and its schemas."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.app.cli.commands.exits import exits
from meshwright.app.cli.options import AsJson, environment_settings, group_of


@exits
def schema(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Schema to print; without it, list them.")] = None,
) -> int:
    """Print a versioned JSON Schema."""
    from meshwright.app.cli.commands.operating import run_schema

    return run_schema(name)


@exits
def migrate(
    down_to: Annotated[
        str | None, typer.Option("--down-to", metavar="REVISION", help="Migrate down to a revision, or to 'base'.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Go down without being asked: that drops data.")] = False,
) -> int:
    """Bring the plan store to the schema of this version."""
    from meshwright.app.cli.commands.operating import Asking, run_migrate

    return run_migrate(down_to, Asking.OFF if yes else Asking.ON, environment_settings())


@exits
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    workers: Annotated[int, typer.Option(min=0, max=64, help="Worker processes to run beside it; 0 for none.")] = 1,
) -> int:
    """Run the REST service."""
    from meshwright.app.cli.commands.operating import run_serve

    return run_serve(host, port, workers, environment_settings())


@exits
def worker(
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the worker, of no other one's.")] = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", help="End with the process that started it.")] = False,
) -> int:
    """Solve the jobs of a service until told to stop."""
    from meshwright.app.cli.commands.operating import Life, run_worker

    return run_worker(name, Life.PARENTS if with_parent else Life.OWN, environment_settings())


@exits
def mcp() -> int:
    """Answer assistants by the Model Context Protocol on stdin and stdout."""
    from meshwright.app.cli.commands.assistant_server import run_mcp

    return run_mcp(environment_settings())


@exits
def doctor(
    as_json: AsJson = False,
    compiles: Annotated[
        bool, typer.Option("--compile", help="Compile the loops that first plans need, for all later plans of this user.")
    ] = False,
) -> int:
    """Look at the store, the caches, the GPUs and launchers of this machine."""
    from meshwright.app.cli.commands.doctoring import run_doctor

    return run_doctor(environment_settings(), as_json=as_json, compiles=compiles)


# The command line of ``keys``; ``app.cli.main`` holds it.

SCOPES = "plans:read, plans:write, calibrations:write, clusters:write, admin"
"""What a key may do (`app.store.principal.Scope`), without loading the store for a page of help."""

keys = group_of("keys", purpose="Make and end the API keys of the service.")

Prefix = Annotated[str, typer.Argument(metavar="PREFIX", help="Prefix of the key, as 'keys list' shows it.")]


@keys.command("create")
@exits
def create_key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the key is for.")],
    scopes: Annotated[list[str], typer.Option("--scope", metavar="SCOPE", help=f"What it may do, again for each: {SCOPES}.")],
    tenant: Annotated[str, typer.Option(help="Whose plans it sees.")] = "default",
    days: Annotated[int | None, typer.Option(metavar="N", help="Days until it expires; without it, never.")] = None,
    as_json: AsJson = False,
) -> int:
    """Make an API key and print it, this once."""
    from meshwright.app.cli.commands.secrets import read_scopes, run_create_key
    from meshwright.app.edge.keys import KeyWish

    return run_create_key(KeyWish(tenant, name, read_scopes(scopes), days), environment_settings(), as_json=as_json)


@keys.command("list")
@exits
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant.")] = None,
    as_json: AsJson = False,
) -> int:
    """List API keys; their text is not among what is kept."""
    from meshwright.app.cli.commands.secrets import run_list_keys

    return run_list_keys(tenant, environment_settings(), as_json=as_json)


@keys.command("rotate")
@exits
def rotate_key(
    prefix: Prefix,
    grace_hours: Annotated[int, typer.Option(min=0, max=720, metavar="N", help="Hours that the old key still holds.")] = 24,
    as_json: AsJson = False,
) -> int:
    """Make a key in place of another, and print it."""
    from meshwright.app.cli.commands.secrets import run_rotate_key

    return run_rotate_key(prefix, grace_hours=grace_hours, settings=environment_settings(), as_json=as_json)


@keys.command("revoke")
@exits
def revoke_key(prefix: Prefix) -> int:
    """Refuse an API key from now on."""
    from meshwright.app.cli.commands.secrets import run_revoke_key

    return run_revoke_key(prefix, environment_settings())


# The command line of ``webhooks``; ``app.cli.main`` holds it.

webhooks = group_of("webhooks", purpose="Make and end the secrets that webhook calls are signed with.")


@webhooks.command("rotate")
@exits
def rotate_secret(
    tenant: Annotated[str, typer.Option(help="Whose calls it signs.")] = "default",
    grace_hours: Annotated[
        int, typer.Option(min=0, max=720, metavar="N", help="Hours that the old one still signs; 0 ends all others.")
    ] = 24,
    as_json: AsJson = False,
) -> int:
    """Make a tenant's secret, or one in place of its last, and print it, this once."""
    from meshwright.app.cli.commands.secrets import run_rotate_secret

    return run_rotate_secret(tenant, grace_hours=grace_hours, settings=environment_settings(), as_json=as_json)


@webhooks.command("list")
@exits
def list_secrets(
    tenant: Annotated[str | None, typer.Option(help="Only secrets of this tenant.")] = None,
    as_json: AsJson = False,
) -> int:
    """List webhook secrets; their text is not among what is kept."""
    from meshwright.app.cli.commands.secrets import run_list_secrets

    return run_list_secrets(tenant, environment_settings(), as_json=as_json)


@webhooks.command("end")
@exits
def end_secret(
    secret_id: Annotated[str, typer.Argument(metavar="ID", help="Identifier of the secret, as 'webhooks list' shows it.")],
) -> int:
    """Sign nothing with a secret from now on."""
    from meshwright.app.cli.commands.secrets import run_end_secret

    return run_end_secret(secret_id, environment_settings())
