"""The command line of running Meshwright: its service, its workers, its store and its schemas."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.app.cli.commands.exits import exits
from meshwright.app.cli.environment import environment_settings


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
    from meshwright.app.cli.commands.working import Life, run_worker

    return run_worker(name, Life.PARENTS if with_parent else Life.OWN, environment_settings())
