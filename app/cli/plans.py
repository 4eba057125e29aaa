"""The command line of what one plan can be asked: to be found, predicted, simulated, exported, compared, sharded.

It is asked of a request file, or of a model and one line of options.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from meshwright.app.base.output_files import check_output
from meshwright.app.cli.commands.exits import exits
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
    environment_settings,
    output_file,
    output_file_or_folder,
    output_folder,
    with_line_options,
    work_units,
)


class TiesName(StrEnum):
    """The operators of a model that take one strategy together."""

    EQUAL_BLOCKS = "equal-blocks"
    NONE = "none"


RequestPath = Annotated[str, typer.Argument(metavar="REQUEST", help="Request file (YAML or JSON), or - for stdin.")]
Calibrations = Annotated[
    list[str] | None,
    typer.Option("--calibration", metavar="CALIBRATION", help="Stored calibration, or file of one, to use; again for more."),
]
ExplainOption = Annotated[
    str | None,
    typer.Option(
        "--explain",
        metavar="OPERATOR|LAYOUT",
        help="Training: say what other shardings of an operator would cost. Serving: say why a layout, or all 'layouts', lost.",
    ),
]

IgnoreRuns = Annotated[bool, typer.Option("--ignore-runs", help="Use nothing that was learned from measured runs.")]


@exits
def predict(
    request: RequestPath,
    plan_file: Annotated[str, typer.Option("--plan", metavar="PLAN", help="Plan file, or - for stdin.")],
    as_json: AsJson = False,
    full: FullPage = False,
    calibration: Calibrations = None,
    explain: ExplainOption = None,
    ignore_runs: IgnoreRuns = False,
) -> int:
    """Check a given plan against a request and predict its speed and memory."""
    from meshwright.app.cli.commands.exits import Output
    from meshwright.app.cli.commands.planning import run_predict
    from meshwright.app.requests.document import RunsUse

    output = Output.JSON if as_json else Output.FULL if full else Output.PAGE
    return run_predict(
        request,
        plan_file,
        output,
        environment_settings(),
        calibrations=tuple(calibration or ()),
        explain=explain,
        runs=RunsUse.IGNORE if ignore_runs else RunsUse.NEWEST,
    )


@exits
def simulate(
    request: RequestPath,
    plan_file: Annotated[str, typer.Option("--plan", metavar="PLAN", help="Plan file, or - for stdin.")],
    as_json: AsJson = False,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", parser=output_file, help="Write requests and work as a trace for Perfetto."),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", parser=output_file, help="Write queue and work over time as a table."),
    ] = None,
) -> int:
    """Simulate a serving plan: percentiles, queue and utilisation over time."""
    from meshwright.app.cli.commands.exits import Output
    from meshwright.app.cli.commands.simulating import SimulateCommand, run_simulate

    environment_settings()
    return run_simulate(SimulateCommand(request, plan_file, Output.JSON if as_json else Output.PAGE, trace, csv))


def _targets(incomplete: str) -> list[str]:
    """Names of launchers and schedulers that begin so, for the shell."""
    from meshwright.app.cli.commands.exporting import targets

    return [name for name in targets() if name.startswith(incomplete)]


def _known_target(given: str) -> str:
    """The name of a launcher or scheduler; raises BadParameter with those there are."""
    from meshwright.app.cli.commands.exporting import targets

    if given not in targets():
        raise typer.BadParameter(f"{given!r} is not one of {', '.join(map(repr, targets()))}.")
    return given


@exits
def export(
    plan_source: Annotated[str, typer.Argument(metavar="PLAN", help="Plan file, - for stdin, or the digest of a stored plan.")],
    target: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="LAUNCHER|SCHEDULER",
            help="Launcher to write for, or dynamo, llm-d, ray-serve ...",
            autocompletion=_targets,
            callback=_known_target,
        ),
    ],
    scheduler: Annotated[
        str | None,
        typer.Option("--on", metavar="SCHEDULER", help="Write its job: slurm, kubernetes, skypilot, ray-serve and others."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", parser=output_folder, help="Write the files into a folder.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Print the arguments or files that launch a plan."""
    from meshwright.app.cli.commands.exits import Output
    from meshwright.app.cli.commands.exporting import ExportCommand, run_export

    command = ExportCommand(plan_source, target, scheduler, folder, Output.JSON if as_json else Output.PAGE)
    return run_export(command, environment_settings())


@exits
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="Plan that runs now: a file, -, or the digest of a stored one.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Plan to go to, given in the same way.")],
    lost: Annotated[
        list[str] | None,
        typer.Option("--lost", metavar="RANKS", help="Ranks of OLD whose devices are gone, as 8 or 8-15; again for more."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Say which bytes move between devices to go from one training plan to another."""
    from meshwright.app.cli.commands.exits import Output
    from meshwright.app.cli.commands.exporting import run_diff

    return run_diff(old, new, tuple(lost or ()), Output.JSON if as_json else Output.PAGE, environment_settings())


@exits
def shard(
    problem: Annotated[
        str | None, typer.Argument(metavar="[PROBLEM]", help="Sharding problem, JSON or JSON.gz; or give --model.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="REQUEST", help="Shard the model of a training request.")
    ] = None,
    mesh: Annotated[
        str | None, typer.Option("--mesh", metavar="AXES", help="Mesh for --model, outer to inner: data=8,tensor=8.")
    ] = None,
    ties: Annotated[
        TiesName, typer.Option("--ties", help="Operators of a model that take one strategy.")
    ] = TiesName.EQUAL_BLOCKS,
    time_limit_s: Annotated[
        float | None, typer.Option("--time-limit", metavar="S", help="Stop after this many seconds.")
    ] = None,
    work_limit: Annotated[
        int | None,
        typer.Option("--work-limit", metavar="N", parser=work_units, help="Stop after this many units of work, as 3e9."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the search.")] = 0,
    confirm: Annotated[
        str | None, typer.Option("--confirm", metavar="SOLVER", help="Solve again with HiGHS, GUROBI ... and compare.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Choose one sharding strategy per operator, of a problem file or of a request's model."""
    from meshwright.app.cli.commands.exits import Output
    from meshwright.app.cli.commands.sharding import ShardCommand, run_shard_command
    from meshwright.solver.strategies.operator_graph import Ties

    output = Output.JSON if as_json else Output.PAGE
    tied = Ties(ties.value.replace("-", "_"))
    command = ShardCommand(problem, model, mesh, tied, time_limit_s, work_limit, seed, confirm, output)
    return run_shard_command(command, environment_settings())


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
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a field of the request: search.risk=0.1; again for more."),
    ] = None,
    explain: ExplainOption = None,
    ignore_runs: IgnoreRuns = False,
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
    from meshwright.app.cli.commands.one_line import asks_several, line_document, print_line
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
    calibrations = tuple(calibration or ())
    changed = tuple(changes or ())
    command = PlanCommand("", asked, file, store, output, calibrations, explain, scope, runs, pictures, changed)
    if asks_several(asked):
        from meshwright.app.cli.commands.clusters import of_one_plan, run_clusters

        if trials is not None or next_trial:
            raise of_one_plan(["--trials or --next"])
        if changed:
            raise of_one_plan(["--set"])
        return run_clusters(asked, command, environment_settings(), download=line.download)
    command = replace(command, request=line_document(asked, download=line.download))
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
