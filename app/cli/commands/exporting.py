"""``export``: what launches a plan, as a shell script or a scheduler's job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meshwright.app.cli.commands.exits import print_json, say
from meshwright.app.cli.commands.planning import Output
from meshwright.app.cli.commands.stored_plans import given_plan_document
from meshwright.app.documents.output_files import is_stdout
from meshwright.app.errors import EXIT_GOOD
from meshwright.app.exporters.launch import export_document, launch, script, write_export
from meshwright.app.exporters.schedulers import JobFile, Scheduler, job_file
from meshwright.app.plans.documents import read_plan_document
from meshwright.app.quoting import terminal_line
from meshwright.app.settings import Settings
from meshwright.costmodels.errors import ExportError
from meshwright.costmodels.names import did_you_mean
from meshwright.solver.problem.choices import Launcher


@dataclass(frozen=True, slots=True)
class ExportCommand:
    """Options of ``export``: the plan's file or digest, the launcher, a scheduler's name, the folder, and what is printed."""

    plan: str
    launcher: Launcher
    scheduler: str | None
    folder: Path | None
    output: Output


def run_export(command: ExportCommand, settings: Settings) -> int:
    """Print what launches a plan, a script, a job or a document, and write its files if a folder is given.

    Raises InfeasibleError for an infeasible plan, ExportError for one that the launcher or the scheduler can't start.
    """
    scheduler = None if command.scheduler is None else _scheduler(command.scheduler)
    answered = read_plan_document(given_plan_document(command.plan, settings))
    result = launch(answered, command.launcher)
    job = None if scheduler is None else job_file(result, answered, scheduler)
    folder = None if command.folder is None or is_stdout(command.folder) else command.folder
    written = [] if folder is None else write_export(result, folder, beside={} if job is None else {job.name: job.text})
    if command.output is Output.JSON:
        print_json(export_document(result, written) | _job_field(job))
    elif written:
        print("\n".join(terminal_line(str(path)) for path in written))
    else:
        print(script(result) if job is None else job.text, end="\n" if job is None else "")
    for assumption in () if job is None else job.assumptions:
        say(f"taken for granted: {assumption}")
    for lost in result.inexpressible:
        say(f"{command.launcher} can't express: {lost}")
    return EXIT_GOOD


def _scheduler(name: str) -> Scheduler:
    """The scheduler of a name; raises ExportError with the names there are."""
    names = [each.value for each in Scheduler]
    if name not in names:
        raise ExportError(
            "there is no such scheduler",
            given=name,
            allowed=", ".join(names),
            remedy=did_you_mean(name, names, otherwise="choose one of them, or leave --on out for a shell script"),
        )
    return Scheduler(name)


def _job_field(job: JobFile | None) -> dict[str, object]:
    if job is None:
        return {}
    return {"job": {"file": job.name, "text": job.text, "submit": job.submit, "assumptions": list(job.assumptions)}}
