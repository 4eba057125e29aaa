"""The launch of a plan: a document, a shell script, and files in a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meshwright.app.base.output_files import FilePermissions, OutputFile, write_outputs
from meshwright.app.base.quoting import here_document, shell_comment
from meshwright.app.launching.exporters import export
from meshwright.app.launching.parts.export import Export
from meshwright.costmodels.errors import InfeasibleError, PlanFileError
from meshwright.solver.answer.plan import AnsweredRequest

EXPORT_SCHEMA = "meshwright.export/1"
SCRIPT_NAME = "launch.sh"


def launch(answered: AnsweredRequest, launcher: str) -> Export:
    """Return what starts a plan by a launcher.

    Raises InfeasibleError for an answer without a plan, ExportError for an unknown launcher or a plan that it can't start.
    """
    if not answered.plan.feasible:
        why = "infeasible" if answered.plan.is_decided else "undecided, not found yet"
        lines = [f"this plan is {why}: there is nothing to launch"]
        if (reason := answered.plan.reason) is not None:
            lines += ["what would help:", *reason.remedies] if reason.remedies else [reason.message]
        raise InfeasibleError("\n".join(lines))
    return export(answered.plan, answered.request, launcher)


def export_document(result: Export, written: Sequence[Path] = ()) -> dict[str, Any]:
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
    return "\n".join([*_comments(result), commands(result)])


def commands(result: Export) -> str:
    """Return the commands that write the launcher's files, where it has any, and launch the plan."""
    documents = [here_document(name, text) for name, text in sorted(result.files.items())]
    return "\n".join([*documents, result.command])


def _comments(result: Export) -> list[str]:
    return [
        "#!/bin/sh",
        shell_comment(f"Launches a plan of Meshwright with {result.launcher} {result.version}."),
        *(shell_comment(f"Takes for granted: {assumption}") for assumption in result.assumptions),
        *(shell_comment(f"Not expressible: {lost}") for lost in result.inexpressible),
    ]


def script_of_command(result: Export) -> str:
    """The launch script that stands beside the launcher's files."""
    return "\n".join([*_comments(result), result.command, ""])


def write_export(result: Export, folder: Path, *, beside: Mapping[str, str] = MappingProxyType({})) -> list[Path]:
    """Write the files and the script into a folder, and other texts ``beside`` them by name; return their paths.

    Raises PlanFileError when that can't be done.
    """
    files = [OutputFile(folder / name, text) for name, text in (*result.files.items(), *beside.items())]
    files.append(OutputFile(folder / SCRIPT_NAME, script_of_command(result), FilePermissions.SCRIPT))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlanFileError(f"the folder can't be made: {error.strerror}", given=str(folder)) from None
    write_outputs(files, what="export")
    return [file.path for file in files]
