"""The command line of ``hardware``; ``app.cli.main`` holds it."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.app.cli.commands.exits import exits
from meshwright.app.cli.options import AsJson, group_of

hardware = group_of("hardware", purpose="Show the devices and nodes that a request can name, and write one of your own.")


@hardware.command("list")
@exits
def list_hardware(
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="Only names and aliases that hold this text.")] = None,
    as_json: AsJson = False,
) -> int:
    """List devices and node types by name. Exit code 1 when none has the text in its name."""
    from meshwright.app.cli.commands.hardware import run_list

    return run_list(text, as_json=as_json)


@hardware.command("show")
@exits
def show_hardware(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A device or node type, or an alias.")],
    as_request: Annotated[
        bool, typer.Option("--request", help="Print the cluster of a request, every figure written out, to change and use.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Show every figure of a device or node type, with its source."""
    from meshwright.app.cli.commands.hardware import run_show

    return run_show(name, as_request=as_request, as_json=as_json)
