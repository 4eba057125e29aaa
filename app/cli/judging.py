"""The command line of commands that judge many plans: against measurements, a lock, or what changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.app.cli.commands.exits import exits
from meshwright.app.cli.environment import environment_settings
from meshwright.app.cli.options import AsJson, input_path, output_file, output_folder_of_many


@exits
def validate(
    measured: Annotated[Path, typer.Argument(metavar="MEASURED", help="CSV table of measured runs or serving points.")],
    as_json: AsJson = False,
    folds: Annotated[
        int | None, typer.Option("--folds", metavar="K", min=2, max=20, help="Fit device rates and score held-out runs.")
    ] = None,
    sources: Annotated[
        str | None, typer.Option("--sources", metavar="MAPPING", help="File of what the table's sources leave out of its rows.")
    ] = None,
    requests: Annotated[
        Path | None,
        typer.Option("--requests", metavar="DIR", parser=output_folder_of_many, help="Write each row as a request and a plan."),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(
            "--models", metavar="DIR", parser=input_path, help="Folder of configs of models that serving points name."
        ),
    ] = None,
) -> int:
    """Predict measured training runs or serving points and report the errors."""
    from meshwright.app.cli.commands.planning import Output
    from meshwright.app.cli.commands.validating import run_validate

    environment_settings()
    output = Output.JSON if as_json else Output.PAGE
    mapping = None if sources is None else Path(sources)
    return run_validate(measured, output, folds=folds, sources=mapping, requests=requests, models=models)


@exits
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of *.plan.yaml requests and their lock.")],
    update: Annotated[bool, typer.Option("--update", help="Write the plans of now to the lock.")] = False,
    as_json: AsJson = False,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", parser=output_file, help="Write a JUnit XML report.")
    ] = None,
    sarif: Annotated[
        Path | None, typer.Option("--sarif", metavar="FILE", parser=output_file, help="Write a SARIF 2.1.0 report.")
    ] = None,
    github: Annotated[bool, typer.Option("--github", help="Print annotations for GitHub Actions as well.")] = False,
    summary: Annotated[
        Path | None, typer.Option("--summary", metavar="FILE", parser=output_file, help="Add a Markdown summary to a file.")
    ] = None,
    server: Annotated[str | None, typer.Option(metavar="URL", help="Plan by a service, which keeps the report.")] = None,
    project: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose history the service adds the report to; else the folder's name.")
    ] = None,
) -> int:
    """Compare the plans of a folder with its lock; exit 1 if any is worse."""
    from meshwright.app.cli.commands.checking import CheckCommand, CheckMode, printed, run_check, server_of

    mode = CheckMode.UPDATE if update else CheckMode.COMPARE
    output = printed(as_json=as_json, github=github)
    command = CheckCommand(folder, mode, output, junit, sarif, summary, server_of(server, project))
    return run_check(command, environment_settings())


@exits
def replan(
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME", help="Registered cluster whose stale plans are meant.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Registered model whose stale plans are meant.")
    ] = None,
    calibration: Annotated[
        str | None, typer.Option("--calibration", metavar="KEY", help="Device key that a new calibration is stored for.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be planned again.")] = False,
    as_json: AsJson = False,
) -> int:
    """Plan again what a change made stale, of everything unless told; exit 1 if any plan got worse or impossible."""
    from meshwright.app.cli.commands.planning import Output
    from meshwright.app.cli.commands.replanning import Act, ReplanCommand, run_replan

    act = Act.PREVIEW if dry_run else Act.START
    output = Output.JSON if as_json else Output.PAGE
    return run_replan(ReplanCommand(cluster, model, calibration, act, output), environment_settings())
