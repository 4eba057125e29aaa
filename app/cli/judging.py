"""The command line of commands that judge many plans: against measurements, a lock, or what changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.app.cli.commands.exits import exits
from meshwright.app.cli.options import (
    AsJson,
    LineOptions,
    environment_settings,
    input_path,
    output_file,
    output_folder_of_many,
    with_line_options,
)
from meshwright.app.evidence.logs.writers import LogWriter


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
    from meshwright.app.cli.commands.exits import Output
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
    from meshwright.app.cli.commands.exits import Output
    from meshwright.app.cli.commands.replanning import Act, ReplanCommand, run_replan

    act = Act.PREVIEW if dry_run else Act.START
    output = Output.JSON if as_json else Output.PAGE
    return run_replan(ReplanCommand(cluster, model, calibration, act, output), environment_settings())


# The command line of ``explain``: a launch command that exists already.


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
    beside: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="FILE", parser=input_path, help="File that the command reads; several may be given."),
    ] = None,
    measured: Annotated[
        list[str] | None,
        typer.Option(
            "--measured", metavar="FIGURES", help="What ran: 840tok/s/gpu, 9.2s, 'MFU 23%', 'ttft 1.2s, tpot 35ms'; say why."
        ),
    ] = None,
    as_given: Annotated[bool, typer.Option("--as-given", help="Do not look for a better plan.")] = False,
    as_json: AsJson = False,
) -> int:
    """Say what a launch command does: whether it starts and fits, how fast it is, and what plan is better."""
    from meshwright.app.cli.commands.exits import Output
    from meshwright.app.cli.commands.explaining import ExplainCommand, run_explain

    output = Output.JSON if as_json else Output.PAGE
    asked = ExplainCommand(
        command or [],
        line.of_model(model or ""),
        output,
        search=not as_given,
        beside=beside or [],
        measured=measured or [],
    )
    return run_explain(asked, environment_settings())


# The command line of ``observe``: what was measured when a plan ran.


@exits
def observe(
    plan_source: Annotated[str, typer.Argument(metavar="PLAN", help="Plan file, - for stdin, or the digest of a stored plan.")],
    step_time: Annotated[
        str | None, typer.Option("--step-time", metavar="TIME", help="Training: time of a step: 7.1s.")
    ] = None,
    peak_memory: Annotated[
        str | None, typer.Option("--peak-memory", metavar="SIZE", help="Peak of the fullest device, reserved: 71GiB.")
    ] = None,
    out_of_memory: Annotated[bool, typer.Option("--out-of-memory", help="It ran out of memory.")] = False,
    tokens_per_s: Annotated[
        str | None, typer.Option("--tokens-per-s", metavar="RATE", help="Serving: tokens generated a second.")
    ] = None,
    ttft_p95: Annotated[
        str | None, typer.Option("--ttft-p95", metavar="TIME", help="Serving: P95 time to first token.")
    ] = None,
    tpot_p95: Annotated[
        str | None, typer.Option("--tpot-p95", metavar="TIME", help="Serving: P95 time per output token.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="RATE", help="Serving: requests a second that were sent, if not as asked.")
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log", metavar="FILE", parser=input_path, help="Log of the run, or JSON of a serving benchmark, instead."
        ),
    ] = None,
    log_format: Annotated[
        LogWriter | None, typer.Option("--log-format", help="The log's writer, if not to be found out.")
    ] = None,
    as_run: Annotated[
        bool, typer.Option("--as-run", help="Store the log's run under its own batch, lengths or load, if not the plan's.")
    ] = False,
    software: Annotated[str, typer.Option("--software", metavar="TEXT", help="Versions that it ran with.")] = "",
    label: Annotated[str, typer.Option("--label", metavar="TEXT", help="Words that tell runs with equal figures apart.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be stored; store nothing.")] = False,
    as_json: AsJson = False,
) -> int:
    """Store what was measured when a plan ran."""
    from meshwright.app.cli.commands.exits import Output
    from meshwright.app.cli.commands.observing import Given, ObserveCommand, run_observe

    given = Given(step_time, peak_memory, tokens_per_s, ttft_p95, tpot_p95, rate, out_of_memory=out_of_memory)
    output = Output.JSON if as_json else Output.PAGE
    command = ObserveCommand(plan_source, given, log, log_format, software, label, output, dry_run=dry_run, as_run=as_run)
    return run_observe(command, environment_settings())
