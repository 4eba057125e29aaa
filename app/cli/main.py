"""The command line. Each command loads what it needs when it runs, so that ``meshwright --help`` answers at once."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from meshwright.app.base.version import installed_version
from meshwright.app.cli.commands.exits import DEBUG, USAGE_ERROR, explain_usage
from meshwright.app.cli.hardware import calibrate, hardware
from meshwright.app.cli.judging import check, explain, observe, replan, validate
from meshwright.app.cli.options import group_of
from meshwright.app.cli.plans import diff, export, init, plan, predict, shard, simulate
from meshwright.app.cli.service import doctor, keys, mcp, migrate, schema, serve, webhooks, worker

cli = group_of(
    "meshwright",
    purpose="Plans how large models train and serve on a cluster, with a proof of how good the plan is.",
    exit_codes="Exit codes: 0 good, 1 no plan or a worse one, 2 bad input, 3 internal error.",
    completes=True,
)

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""The variable that holds the number of threads that NumPy and SciPy multiply with."""


def main() -> None:
    """Entry point of the ``meshwright`` command."""
    # Matrices of fits are small: threads of the linear algebra, one a core, would wait for one another longer than they work.
    # To be said before NumPy is loaded; processes that this one starts take it over.
    os.environ.setdefault(BLAS_THREADS, "1")
    # A character that the terminal can't show must not end a command.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        code = cli(standalone_mode=False, prog_name="meshwright")
    except USAGE_ERROR as error:
        code = explain_usage(error)
    sys.exit(code)


def print_version(asked: bool) -> None:
    """Print the version where it is asked for, and end: this runs before a command is looked for."""
    if asked:
        print(f"meshwright {installed_version()}")
        raise typer.Exit()


def print_man_page(asked: bool) -> None:
    """Print the manual page where it is asked for, and end."""
    if asked:
        from meshwright.app.cli.man_page import man_page

        typer.echo(man_page(typer.main.get_command(cli), installed_version()), nl=False)
        raise typer.Exit()


def print_without_color(asked: bool) -> None:
    """Have every console of this process, and of those that it starts, print without colours (https://no-color.org)."""
    if asked:
        os.environ["NO_COLOR"] = "1"


@cli.callback()
def options(
    with_traceback: Annotated[bool, typer.Option(DEBUG, help="Show the traceback of every error.")] = False,
    no_color: Annotated[
        bool, typer.Option("--no-color", callback=print_without_color, help="Print without colours, as with NO_COLOR.")
    ] = False,
    man: Annotated[
        bool, typer.Option("--man", callback=print_man_page, is_eager=True, help="Print the manual page, for man -l -.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command; what runs the command reads them."""


for command in (
    plan,
    init,
    predict,
    simulate,
    export,
    explain,
    observe,
    diff,
    shard,
    validate,
    check,
    schema,
    migrate,
    serve,
    worker,
    mcp,
    replan,
    doctor,
):
    cli.command()(command)
cli.add_typer(calibrate, name="calibrate")
cli.add_typer(hardware, name="hardware")
cli.add_typer(keys, name="keys")
cli.add_typer(webhooks, name="webhooks")
