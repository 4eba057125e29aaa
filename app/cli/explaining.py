"""The command line of ``explain``: a launch command that exists already."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.app.cli.commands.exits import exits
from meshwright.app.cli.environment import environment_settings
from meshwright.app.cli.line_options import LineOptions, with_line_options
from meshwright.app.cli.options import AsJson


@exits
@with_line_options
def explain(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE | FOLDER | -- COMMAND",
            help="File with a launch command or a launcher's configuration, folder with both, or -- and the command itself.",
        ),
    ] = None,
    *,
    line: LineOptions,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="The model, where the command's is another name of it.")
    ] = None,
    as_given: Annotated[bool, typer.Option("--as-given", help="Do not look for a better plan.")] = False,
    as_json: AsJson = False,
) -> int:
    """Say what a launch command does: whether it starts and fits, how fast it is, and what plan is better."""
    from meshwright.app.cli.commands.explaining import ExplainCommand, run_explain
    from meshwright.app.cli.commands.planning import Output

    output = Output.JSON if as_json else Output.PAGE
    asked = ExplainCommand(command or [], line.of_model(model or ""), output, search=not as_given)
    return run_explain(asked, environment_settings())
