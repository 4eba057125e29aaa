"""``simulate``: a given serving plan under the load of its request."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from meshwright.app.base.errors import EXIT_GOOD, EXIT_NO
from meshwright.app.base.output_files import OutputFile, check_one_stdout, is_stdout, write_outputs
from meshwright.app.base.quoting import csv_text
from meshwright.app.cli.commands.exits import Output, print_json
from meshwright.app.requests.files import STDIN, read_document, read_request
from meshwright.app.requests.plan_documents import interval_rows, read_plan
from meshwright.app.service.load import simulation_document
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.api import simulate


@dataclass(frozen=True, slots=True)
class SimulateCommand:
    """Options of ``simulate``: paths of the request and of the plan, what is printed, and files to write, if any."""

    request: str
    plan: str
    output: Output
    trace: Path | None = None
    csv: Path | None = None


def run_simulate(command: SimulateCommand) -> int:
    """Simulate a plan and print what its requests see; exit code 1 when it misses a target or does not fit in memory."""
    if command.request == command.plan == STDIN:
        raise InvalidInputError("request and plan can't both come from stdin", given="-")
    check_one_stdout(taken=command.output is Output.JSON, outputs=[command.trace, command.csv])
    request = read_request(command.request)
    plan = read_plan(read_document(command.plan, what="plan"))
    simulated = simulate(request, plan)
    files = []
    if command.trace is not None:
        from meshwright.app.pictures.simulation_trace import simulation_trace_text

        files.append(OutputFile(command.trace, simulation_trace_text(simulated, title=plan.model)))
    if command.csv is not None:
        files.append(OutputFile(command.csv, csv_text(interval_rows(simulation_document(simulated)))))
    write_outputs(files, what="simulation")
    if command.output is Output.JSON:
        print_json(simulation_document(simulated))
    else:
        from meshwright.app.base.console import page_console
        from meshwright.app.cli.pages.simulation_page import print_simulation

        console = page_console(sys.stderr if any(map(is_stdout, (command.trace, command.csv))) else sys.stdout)
        print_simulation(console, simulated, plan, request)
    return EXIT_NO if simulated.missed else EXIT_GOOD
