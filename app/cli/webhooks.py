"""The command line of ``webhooks``; ``app.cli.main`` holds it."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.app.cli.commands.exits import exits
from meshwright.app.cli.environment import environment_settings
from meshwright.app.cli.options import AsJson, group_of

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
    from meshwright.app.cli.commands.secrets.webhook_secrets import run_rotate_secret

    return run_rotate_secret(tenant, grace_hours=grace_hours, settings=environment_settings(), as_json=as_json)


@webhooks.command("list")
@exits
def list_secrets(
    tenant: Annotated[str | None, typer.Option(help="Only secrets of this tenant.")] = None,
    as_json: AsJson = False,
) -> int:
    """List webhook secrets; their text is not among what is kept."""
    from meshwright.app.cli.commands.secrets.webhook_secrets import run_list_secrets

    return run_list_secrets(tenant, environment_settings(), as_json=as_json)


@webhooks.command("end")
@exits
def end_secret(
    secret_id: Annotated[str, typer.Argument(metavar="ID", help="Identifier of the secret, as 'webhooks list' shows it.")],
) -> int:
    """Sign nothing with a secret from now on."""
    from meshwright.app.cli.commands.secrets.webhook_secrets import run_end_secret

    return run_end_secret(secret_id, environment_settings())
