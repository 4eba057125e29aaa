"""``export``: what launches a plan, as a shell script or a scheduler's job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.app.base.errors import EXIT_GOOD
from meshwright.app.base.output_files import is_stdout
from meshwright.app.base.plan_words import devices_left
from meshwright.app.base.quoting import shell_word, terminal_line
from meshwright.app.base.settings import Settings
from meshwright.app.cli.commands.exits import Output, print_json, say
from meshwright.app.cli.commands.stored_plans import given_plan_document
from meshwright.app.launching.exporters import LAUNCHERS, own_launcher
from meshwright.app.launching.exporters.launch import SCRIPT_NAME, export_document, launch, script, write_export
from meshwright.app.launching.exporters.schedulers import JobFile, Scheduler, job_file
from meshwright.app.requests.files import STDIN
from meshwright.app.requests.plan_documents import read_plan_document
from meshwright.costmodels.errors import ExportError, InfeasibleError, InvalidInputError, did_you_mean
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.switching import Switch, SwitchTraffic, switch_bytes


@dataclass(frozen=True, slots=True)
class ExportCommand:
    """Options of ``export``: the plan's file or digest, the name of a launcher or a scheduler, a scheduler's beside a
    launcher's, the folder, and what is printed."""

    plan: str
    target: str
    scheduler: str | None
    folder: Path | None
    output: Output


def run_export(command: ExportCommand, settings: Settings) -> int:
    """Print what launches a plan, a script, a job or a document, and write its files if a folder is given.

    Raises InfeasibleError for an infeasible plan, ExportError for one that the launcher or the scheduler can't start.
    """
    named = command.target if command.target in {each.value for each in Scheduler} else command.scheduler
    scheduler = None if named is None else _scheduler(named)
    if scheduler is not None and command.scheduler not in (None, scheduler.value):
        raise ExportError("a job is for one scheduler", given=f"--to {command.target} --on {command.scheduler}")
    answered = read_plan_document(given_plan_document(command.plan, settings))
    # A scheduler that is named as the launcher starts the plan's own.
    launcher = own_launcher(answered.request).value if command.target == named else command.target
    result = launch(answered, launcher)
    job = None if scheduler is None else job_file(result, answered, scheduler)
    folder = None if command.folder is None or is_stdout(command.folder) else command.folder
    written = [] if folder is None else write_export(result, folder, beside={} if job is None else {job.name: job.text})
    if command.output is Output.JSON:
        print_json(export_document(result, written) | _job_field(job))
    elif written:
        print("\n".join(terminal_line(str(path)) for path in written))
        say(f"start it: cd {shell_word(str(folder))} && {f'sh {SCRIPT_NAME}' if job is None else job.submit}")
    else:
        print(script(result) if job is None else job.text, end="\n" if job is None else "")
    for assumption in () if job is None else job.assumptions:
        say(f"taken for granted: {assumption}")
    for lost in result.inexpressible:
        say(f"{launcher} can't express: {lost}")
    return EXIT_GOOD


def targets() -> tuple[str, ...]:
    """Return what a plan can be written for: launchers, and schedulers that start its own."""
    return (*LAUNCHERS, *(each.value for each in Scheduler))


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


# ``diff``: what moves between devices when a training run goes from one plan to another.

DIFF_SCHEMA = "meshwright.diff/1"


def run_diff(old_plan: str, new_plan: str, lost: tuple[str, ...], output: Output, settings: Settings) -> int:
    """Print what moves to go from one plan to another; raises InfeasibleError when one of them is infeasible."""
    if old_plan == new_plan == STDIN:
        raise InvalidInputError("both plans can't come from stdin", given="-")
    old, new = (read_plan_document(given_plan_document(plan, settings)) for plan in (old_plan, new_plan))
    for name, answered in (("old", old), ("new", new)):
        if not answered.plan.feasible:
            why = "infeasible" if answered.plan.is_decided else "undecided, not found yet"
            raise InfeasibleError(f"the {name} plan is {why}: there is nothing to move")
    switch = switch_bytes(old, new, device_of_old_rank=devices_left(lost, old, new))
    if output is Output.JSON:
        print_json(diff_document(switch, old, new))
    else:
        from meshwright.app.base.console import page_console
        from meshwright.app.cli.commands.planning import export_command
        from meshwright.app.cli.pages.diff_page import print_diff

        console = page_console()
        print_diff(console, switch, old, new, command=None if new_plan == STDIN else export_command(new_plan, new))
    return EXIT_GOOD


def diff_document(switch: Switch, old: AnsweredRequest, new: AnsweredRequest) -> dict[str, Any]:
    """Return the moves of a switch as a JSON document: bytes and seconds; lists have one entry for each device of the new
    plan's cluster."""
    return {
        "schema": DIFF_SCHEMA,
        "old": old.plan.digest,
        "new": new.plan.digest,
        "moved_bytes": switch.moved_bytes,
        "kept_share": switch.kept_share,
        "least_time_s": switch.time_s,
        "fabric_s": switch.fabric_s,
        "network_s": switch.network_s,
        "weights": _sums(switch.weights),
        "optimizer": _sums(switch.optimizer),
        "devices": {name: values.tolist() for name, values in _columns(switch.total).items()},
    }


def _sums(traffic: SwitchTraffic) -> dict[str, float]:
    return {name: float(values.sum()) for name, values in _columns(traffic).items()}


def _columns(traffic: SwitchTraffic) -> dict[str, Any]:
    return {
        "kept_bytes": traffic.kept,
        "from_node_bytes": traffic.from_node,
        "from_network_bytes": traffic.from_network,
        "from_storage_bytes": traffic.from_storage,
        "to_node_bytes": traffic.to_node,
        "to_network_bytes": traffic.to_network,
    }
