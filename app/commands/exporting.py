"""``export``: what launches a plan, as a shell script."""

from __future__ import annotations

from pathlib import Path

from app.commands.exits import say
from app.commands.stored_plans import given_plan_document
from app.errors import EXIT_GOOD, EXIT_NO
from app.exporters import export
from app.exporters.export import Export
from app.plans.documents import read_plan_document
from app.settings import Settings
from costmodels.errors import PlanFileError
from solver.request import Launcher

SCRIPT_NAME = "launch.sh"
END_OF_FILE = "END_OF_FILE"


def run_export(plan: str, launcher: str, folder: Path | None, settings: Settings) -> int:
    """Print the script that launches a plan, or write it and its files into a folder; 1 for an infeasible plan."""
    answered = read_plan_document(given_plan_document(plan, settings))
    if not answered.plan.feasible:
        say("this plan is infeasible: there is nothing to launch")
        return EXIT_NO
    result = export(answered.plan, answered.request, Launcher(launcher))
    if folder is None:
        print(script(result))
    else:
        for path in _write(result, folder):
            print(path)
    for lost in result.inexpressible:
        say(f"{launcher} can't express: {lost}")
    return EXIT_GOOD


def script(result: Export) -> str:
    """A shell script that writes the launcher's files where it runs and launches the plan."""
    documents = [
        f"cat > {name} <<'{END_OF_FILE}'\n{text.rstrip()}\n{END_OF_FILE}" for name, text in sorted(result.files.items())
    ]
    return "\n".join([*_comments(result), *documents, result.command])


def _comments(result: Export) -> list[str]:
    return [
        "#!/bin/sh",
        f"# Launches a plan of Meshwright with {result.launcher} {result.version}.",
        *(f"# Takes for granted: {assumption}" for assumption in result.assumptions),
        *(f"# Not expressible: {lost}" for lost in result.inexpressible),
    ]


def _write(result: Export, folder: Path) -> list[Path]:
    """Write the files and the script into a folder; raises PlanFileError when that can't be done."""
    texts = {**result.files, SCRIPT_NAME: "\n".join([*_comments(result), result.command, ""])}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        (folder / SCRIPT_NAME).chmod(0o755)
    except OSError as error:
        raise PlanFileError(f"the files can't be written: {error.strerror}", given=str(folder)) from None
    return [folder / name for name in texts]
