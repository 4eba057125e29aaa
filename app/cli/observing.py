"""The command line of ``observe``: what was measured when a plan ran."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.app.cli.commands.exits import exits
from meshwright.app.cli.environment import environment_settings
from meshwright.app.cli.options import AsJson, input_path
from meshwright.app.runs.logs.writers import LogWriter


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
    log: Annotated[
        Path | None,
        typer.Option(
            "--log", metavar="FILE", parser=input_path, help="Log of the run, or JSON of a serving benchmark, instead."
        ),
    ] = None,
    log_format: Annotated[
        LogWriter | None, typer.Option("--log-format", help="The log's writer, if not to be found out.")
    ] = None,
    software: Annotated[str, typer.Option("--software", metavar="TEXT", help="Versions that it ran with.")] = "",
    label: Annotated[str, typer.Option("--label", metavar="TEXT", help="Words that tell runs with equal figures apart.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be stored; store nothing.")] = False,
    as_json: AsJson = False,
) -> int:
    """Store what was measured when a plan ran."""
    from meshwright.app.cli.commands.observing import Given, ObserveCommand, run_observe
    from meshwright.app.cli.commands.planning import Output

    given = Given(step_time, peak_memory, tokens_per_s, ttft_p95, tpot_p95, out_of_memory=out_of_memory)
    command = ObserveCommand(
        plan_source, given, log, log_format, software, label, Output.JSON if as_json else Output.PAGE, dry_run=dry_run
    )
    return run_observe(command, environment_settings())
