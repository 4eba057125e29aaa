"""``export``: what launches a plan, as a shell script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshwright.app.cli.commands.exits import print_json, say
from meshwright.app.cli.commands.planning import Output
from meshwright.app.cli.commands.stored_plans import given_plan_document
from meshwright.app.documents.output_files import Mode, OutputFile, is_stdout, write_outputs
from meshwright.app.errors import EXIT_GOOD
from meshwright.app.exporters import export
from meshwright.app.exporters.export import Export
from meshwright.app.plans.documents import read_plan_document
from meshwright.app.quoting import here_document, shell_comment, terminal_line
from meshwright.app.settings import Settings
from meshwright.costmodels.errors import InfeasibleError, PlanFileError
from meshwright.solver.problem.choices import Launcher

EXPORT_SCHEMA = "meshwright.export/1"
SCRIPT_NAME = "launch.sh"


def run_export(plan: str, launcher: Launcher, folder: Path | None, output: Output, settings: Settings) -> int:
    """Print what launches a plan, a script or a document, and write its files if a folder is given.

    Raises InfeasibleError for an infeasible plan.
    """
    answered = read_plan_document(given_plan_document(plan, settings))
    if not answered.plan.feasible:
        why = "infeasible" if answered.plan.is_decided else "undecided, not found yet"
        raise InfeasibleError(f"this plan is {why}: there is nothing to launch")
    result = export(answered.plan, answered.request, launcher)
    written = [] if folder is None or is_stdout(folder) else _write(result, folder)
    if output is Output.JSON:
        print_json(export_document(result, written))
    else:
        print("\n".join(terminal_line(str(path)) for path in written) if written else script(result))
    for lost in result.inexpressible:
        say(f"{launcher} can't express: {lost}")
    return EXIT_GOOD


def export_document(result: Export, written: Sequence[Path]) -> dict[str, Any]:
    """An export as a JSON document, and the paths of the files that were written."""
    return {
        "schema": EXPORT_SCHEMA,
        "launcher": result.launcher,
        "version": result.version,
        "command": result.command,
        "files": dict(sorted(result.files.items())),
        "assumptions": list(result.assumptions),
        "inexpressible": list(result.inexpressible),
        "written": [str(path) for path in written],
    }


def script(result: Export) -> str:
    """A shell script that writes the launcher's files where it runs and launches the plan."""
    documents = [here_document(name, text) for name, text in sorted(result.files.items())]
    return "\n".join([*_comments(result), *documents, result.command])


def _comments(result: Export) -> list[str]:
    return [
        "#!/bin/sh",
        shell_comment(f"Launches a plan of Meshwright with {result.launcher} {result.version}."),
        *(shell_comment(f"Takes for granted: {assumption}") for assumption in result.assumptions),
        *(shell_comment(f"Not expressible: {lost}") for lost in result.inexpressible),
    ]


def _write(result: Export, folder: Path) -> list[Path]:
    """Write the files and the script into a folder; raises PlanFileError when that can't be done."""
    files = [OutputFile(folder / name, text) for name, text in result.files.items()]
    script = "\n".join([*_comments(result), result.command, ""])
    files.append(OutputFile(folder / SCRIPT_NAME, script, Mode.SCRIPT))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlanFileError(f"the folder can't be made: {error.strerror}", given=str(folder)) from None
    write_outputs(files, what="export")
    return [file.path for file in files]
