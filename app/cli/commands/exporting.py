"""``export``: what launches a plan, as a shell script."""

from __future__ import annotations

from pathlib import Path

from meshwright.app.cli.commands.exits import print_json, say
from meshwright.app.cli.commands.planning import Output
from meshwright.app.cli.commands.stored_plans import given_plan_document
from meshwright.app.documents.output_files import is_stdout
from meshwright.app.errors import EXIT_GOOD
from meshwright.app.exporters.launch import export_document, launch, script, write_export
from meshwright.app.plans.documents import read_plan_document
from meshwright.app.quoting import terminal_line
from meshwright.app.settings import Settings
from meshwright.solver.problem.choices import Launcher


def run_export(plan: str, launcher: Launcher, folder: Path | None, output: Output, settings: Settings) -> int:
    """Print what launches a plan, a script or a document, and write its files if a folder is given.

    Raises InfeasibleError for an infeasible plan.
    """
    result = launch(read_plan_document(given_plan_document(plan, settings)), launcher)
    written = [] if folder is None or is_stdout(folder) else write_export(result, folder)
    if output is Output.JSON:
        print_json(export_document(result, written))
    else:
        print("\n".join(terminal_line(str(path)) for path in written) if written else script(result))
    for lost in result.inexpressible:
        say(f"{launcher} can't express: {lost}")
    return EXIT_GOOD
