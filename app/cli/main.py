"""The command line. Each command loads what it needs when it runs, so that ``meshwright --help`` answers at once."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from meshwright.app.cli.calibrate import calibrate
from meshwright.app.cli.commands.exits import DEBUG, USAGE_ERROR, exits, explain_usage
from meshwright.app.cli.options import AsJson, group_of, output_file, output_folder
from meshwright.app.settings import Settings, read_settings
from meshwright.app.version import installed_version
from meshwright.solver.problem.choices import Launcher

cli = group_of(
    "meshwright",
    purpose="Plans how large models train and serve on a cluster, with a proof of how good the plan is.",
    exit_codes="Exit codes: 0 good, 1 no plan or a worse one, 2 bad input, 3 internal error.",
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


def main() -> None:
    """Entry point of the ``meshwright`` command."""
    # A character that the terminal can't show must not end a command.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        code = cli(standalone_mode=False)
    except USAGE_ERROR as error:
        code = explain_usage(error)
    sys.exit(code)


def print_version(asked: bool) -> None:
    """Print the version where it is asked for, and end: this runs before a command is looked for."""
    if asked:
        print(f"meshwright {installed_version()}")
        raise typer.Exit()


@cli.callback()
def options(
    with_traceback: Annotated[bool, typer.Option(DEBUG, help="Show the traceback of every error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command; what runs the command reads them."""


@cli.command()
@exits
def plan(
    request: RequestPath,
    as_json: AsJson = False,
    file: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", parser=output_file, help="Write the plan document to a file."),
    ] = None,
    no_store: Annotated[bool, typer.Option("--no-store", help="Neither look in the plan store nor keep the plan.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Solve even if a plan is stored.")] = False,
    calibration: Calibrations = None,
    explain: ExplainOption = None,
    frontier: Annotated[bool, typer.Option("--frontier", help="Sweep for the frontier, as search.frontier: swept.")] = False,
) -> int:
    """Find the best plan for a request."""
    from meshwright.app.cli.commands.planning import Output, PlanCommand, Store, run_plan
    from meshwright.solver.problem.choices import FrontierScope

    store = Store.NONE if no_store else Store.FRESH if fresh else Store.USE
    output = Output.JSON if as_json else Output.PAGE
    scope = FrontierScope.SWEPT if frontier else None
    command = PlanCommand(request, file, store, output, tuple(calibration or ()), explain, scope)
    return run_plan(command, _settings())


@cli.command()
@exits
def predict(
    request: RequestPath,
    plan_file: Annotated[str, typer.Option("--plan", metavar="PLAN", help="Plan file, or - for stdin.")],
    as_json: AsJson = False,
    calibration: Calibrations = None,
    explain: ExplainOption = None,
) -> int:
    """Check a given plan against a request and predict its speed and memory."""
    from meshwright.app.cli.commands.planning import Output, run_predict

    output = Output.JSON if as_json else Output.PAGE
    return run_predict(request, plan_file, output, _settings(), calibrations=tuple(calibration or ()), explain=explain)


@cli.command()
@exits
def simulate(
    request: RequestPath,
    plan_file: Annotated[str, typer.Option("--plan", metavar="PLAN", help="Plan file, or - for stdin.")],
    as_json: AsJson = False,
) -> int:
    """Simulate a serving plan: percentiles, queue and utilisation over time."""
    from meshwright.app.cli.commands.planning import Output
    from meshwright.app.cli.commands.simulating import run_simulate

    _settings()
    return run_simulate(request, plan_file, Output.JSON if as_json else Output.PAGE)


@cli.command()
@exits
def export(
    plan_source: Annotated[str, typer.Argument(metavar="PLAN", help="Plan file, - for stdin, or the digest of a stored plan.")],
    launcher: Annotated[Launcher, typer.Option("--to", help="Launcher to write for.")],
    folder: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", parser=output_folder, help="Write the files into a folder.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Print the arguments or files that launch a plan."""
    from meshwright.app.cli.commands.exporting import run_export
    from meshwright.app.cli.commands.planning import Output

    return run_export(plan_source, launcher, folder, Output.JSON if as_json else Output.PAGE, _settings())


@cli.command()
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
    from meshwright.app.cli.commands.diffing import run_diff
    from meshwright.app.cli.commands.planning import Output

    return run_diff(old, new, tuple(lost or ()), Output.JSON if as_json else Output.PAGE, _settings())


@cli.command()
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
        int | None, typer.Option("--work-limit", metavar="N", min=1, help="Stop after this many units of work.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the search.")] = 0,
    confirm: Annotated[
        str | None, typer.Option("--confirm", metavar="SOLVER", help="Solve again with HiGHS, GUROBI ... and compare.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Choose one sharding strategy per operator, of a problem file or of a request's model."""
    from meshwright.app.cli.commands.planning import Output
    from meshwright.app.cli.commands.sharding import ShardCommand, run_shard_command
    from meshwright.solver.strategies.folding import Ties

    output = Output.JSON if as_json else Output.PAGE
    tied = Ties(ties.value.replace("-", "_"))
    command = ShardCommand(problem, model, mesh, tied, time_limit_s, work_limit, seed, confirm, output)
    return run_shard_command(command, _settings())


@cli.command()
@exits
def validate(
    measured: Annotated[Path, typer.Argument(metavar="MEASURED", help="CSV table of measured runs or serving points.")],
    as_json: AsJson = False,
    folds: Annotated[
        int | None, typer.Option("--folds", metavar="K", min=2, max=20, help="Fit device rates and score held-out runs.")
    ] = None,
) -> int:
    """Predict measured training runs or serving points and report the errors."""
    from meshwright.app.cli.commands.planning import Output
    from meshwright.app.cli.commands.validating import run_validate

    _settings()
    return run_validate(measured, Output.JSON if as_json else Output.PAGE, folds)


@cli.command()
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
    from meshwright.app.cli.commands.checking import CheckCommand, Mode, printed, run_check, server_of

    mode = Mode.UPDATE if update else Mode.COMPARE
    output = printed(as_json=as_json, github=github)
    command = CheckCommand(folder, mode, output, junit, sarif, summary, server_of(server, project))
    return run_check(command, _settings())


@cli.command()
@exits
def schema(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Schema to print; without it, list them.")] = None,
) -> int:
    """Print a versioned JSON Schema."""
    from meshwright.app.cli.commands.operating import run_schema

    return run_schema(name)


@cli.command()
@exits
def migrate(
    down_to: Annotated[
        str | None, typer.Option("--down-to", metavar="REVISION", help="Migrate down to a revision, or to 'base'.")
    ] = None,
) -> int:
    """Bring the plan store to the schema of this version."""
    from meshwright.app.cli.commands.operating import run_migrate

    return run_migrate(down_to, _settings())


cli.add_typer(calibrate, name="calibrate")

keys = group_of("keys", purpose="Make and end the API keys of the service.")
cli.add_typer(keys, name="keys")

Prefix = Annotated[str, typer.Argument(metavar="PREFIX", help="Prefix of the key, as 'keys list' shows it.")]


@keys.command("create")
@exits
def create_key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the key is for.")],
    scopes: Annotated[list[str], typer.Option("--scope", metavar="SCOPE", help="What it may do; can be given several times.")],
    tenant: Annotated[str, typer.Option(help="Whose plans it sees.")] = "default",
    days: Annotated[int | None, typer.Option(metavar="N", help="Days until it expires; without it, never.")] = None,
    as_json: AsJson = False,
) -> int:
    """Make an API key and print it, this once."""
    from meshwright.app.cli.commands.keys import read_scopes, run_create_key
    from meshwright.app.security.keeping import KeyWish

    return run_create_key(KeyWish(tenant, name, read_scopes(scopes), days), _settings(), as_json=as_json)


@keys.command("list")
@exits
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant.")] = None,
    as_json: AsJson = False,
) -> int:
    """List API keys; their text is not among what is kept."""
    from meshwright.app.cli.commands.keys import run_list_keys

    return run_list_keys(tenant, _settings(), as_json=as_json)


@keys.command("rotate")
@exits
def rotate_key(
    prefix: Prefix,
    grace_hours: Annotated[int, typer.Option(min=0, max=720, metavar="N", help="Hours that the old key still holds.")] = 24,
    as_json: AsJson = False,
) -> int:
    """Make a key in place of another, and print it."""
    from meshwright.app.cli.commands.keys import run_rotate_key

    return run_rotate_key(prefix, grace_hours=grace_hours, settings=_settings(), as_json=as_json)


@keys.command("revoke")
@exits
def revoke_key(prefix: Prefix) -> int:
    """Refuse an API key from now on."""
    from meshwright.app.cli.commands.keys import run_revoke_key

    return run_revoke_key(prefix, _settings())


@cli.command()
@exits
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    workers: Annotated[int, typer.Option(min=0, max=64, help="Worker processes to run beside it; 0 for none.")] = 1,
) -> int:
    """Run the REST service."""
    from meshwright.app.cli.commands.operating import run_serve

    return run_serve(host, port, workers, _settings())


@cli.command()
@exits
def worker(
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the worker, of no other one's.")] = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", help="End with the process that started it.")] = False,
) -> int:
    """Solve the jobs of a service until told to stop."""
    from meshwright.app.cli.commands.working import Life, run_worker

    return run_worker(name, Life.PARENTS if with_parent else Life.OWN, _settings())


@cli.command()
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
    return run_replan(ReplanCommand(cluster, model, calibration, act, output), _settings())


def _settings() -> Settings:
    """Settings of the environment; logging starts with them."""
    from meshwright.app.logs import start_logging

    settings = read_settings()
    start_logging(settings.log_level, settings.log_format)
    return settings
