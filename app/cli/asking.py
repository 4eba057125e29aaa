"""The command line of what a plan is asked for: a request file, or a model and one line of options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.app.base.output_files import check_output
from meshwright.app.cli.commands.exits import exits
from meshwright.app.cli.environment import environment_settings
from meshwright.app.cli.options import (
    AsJson,
    CsvFile,
    FrontierFile,
    FullPage,
    HtmlFile,
    LineOptions,
    MapFile,
    MemoryFile,
    TimelineFile,
    TraceFile,
    output_file,
    output_file_or_folder,
    with_line_options,
)
from meshwright.app.cli.plans import Calibrations, ExplainOption

RequestOrModel = Annotated[
    str,
    typer.Argument(
        metavar="REQUEST|MODEL",
        help="Request file, or - for stdin; with --gpus a model: a catalogue name, ORG/NAME, a folder, a config.json.",
    ),
]


@exits
@with_line_options
def plan(
    request: RequestOrModel,
    *,
    line: LineOptions,
    print_request: Annotated[
        bool, typer.Option("--print-request", help="With --gpus: print the request as YAML, to keep, instead of the plan.")
    ] = False,
    as_json: AsJson = False,
    full: FullPage = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            parser=output_file_or_folder,
            help="Write the plan document to a file; with --trials a folder.",
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option("--trials", metavar="N", min=1, max=8, help="Plans to run one after another.")
    ] = None,
    next_trial: Annotated[
        bool, typer.Option("--next", help="The next plan to run after those that 'observe' has stored.")
    ] = False,
    no_store: Annotated[bool, typer.Option("--no-store", help="Neither look in the plan store nor keep the plan.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Solve even if a plan is stored.")] = False,
    calibration: Calibrations = None,
    explain: ExplainOption = None,
    ignore_runs: Annotated[
        bool, typer.Option("--ignore-runs", help="Use nothing that was learned from measured runs.")
    ] = False,
    frontier: Annotated[bool, typer.Option("--frontier", help="Sweep for the frontier, as search.frontier: swept.")] = False,
    html: HtmlFile = None,
    trace: TraceFile = None,
    svg_timeline: TimelineFile = None,
    svg_memory: MemoryFile = None,
    svg_frontier: FrontierFile = None,
    svg_map: MapFile = None,
    csv: CsvFile = None,
) -> int:
    """Find the best plan for a request, or for a model and one line of options."""
    from meshwright.app.cli.commands.exits import Output
    from meshwright.app.cli.commands.one_line import line_document, print_line
    from meshwright.app.cli.commands.planning import PlanCommand, Store, run_plan
    from meshwright.app.pictures.files import Picture, named
    from meshwright.app.requests.document import RunsUse
    from meshwright.solver.problem.choices import FrontierScope

    asked = line.of_model(request)
    if print_request:
        return print_line(asked, download=line.download)
    store = Store.NONE if no_store else Store.FRESH if fresh else Store.USE
    output = Output.JSON if as_json else Output.FULL if full else Output.PAGE
    scope = FrontierScope.SWEPT if frontier else None
    runs = RunsUse.IGNORE if ignore_runs else RunsUse.NEWEST
    drawings = {Picture.TIMELINE: svg_timeline, Picture.MEMORY: svg_memory, Picture.FRONTIER: svg_frontier}
    pictures = named({Picture.HTML: html, Picture.TRACE: trace, **drawings, Picture.MAP: svg_map, Picture.CSV: csv})
    document, calibrations = line_document(asked, download=line.download), tuple(calibration or ())
    command = PlanCommand(document, asked.words, file, store, output, calibrations, explain, scope, runs, pictures)
    if trials is not None or next_trial:
        from meshwright.app.cli.commands.one_line import run_trials

        return run_trials(command, None if next_trial else trials, file, environment_settings())
    if file is not None:
        check_output(file, what="output")
    return run_plan(command, environment_settings())


@exits
@with_line_options
def init(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="A catalogue name, ORG/NAME, a checkpoint's folder, a config.json.")
    ] = None,
    *,
    line: LineOptions,
    file: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", parser=output_file, help="Write the request to a file, not to stdout."),
    ] = None,
) -> int:
    """Write a request to keep, from options, and from questions where they are missing and this is a terminal."""
    from meshwright.app.cli.commands.one_line import completed, write_line

    return write_line(completed(line.of_model(model or "")), file, download=line.download)
