"""``simulate``: a given serving plan under the load of its request."""

from __future__ import annotations

from meshwright.app.cli.commands.exits import print_json
from meshwright.app.cli.commands.planning import Output
from meshwright.app.errors import EXIT_GOOD, EXIT_NO
from meshwright.app.plans.documents import read_plan
from meshwright.app.plans.simulations import simulation_document
from meshwright.app.requests.files import STDIN, read_document, read_request
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.api import simulate


def run_simulate(request_path: str, plan_path: str, output: Output) -> int:
    """Simulate a plan and print what its requests see; exit code 1 when it misses a target or does not fit in memory."""
    if request_path == plan_path == STDIN:
        raise InvalidInputError("request and plan can't both come from stdin", given="-")
    request = read_request(request_path)
    plan = read_plan(read_document(plan_path, what="plan"))
    simulated = simulate(request, plan)
    if output is Output.JSON:
        print_json(simulation_document(simulated))
    else:
        from meshwright.app.cli.pages.simulation_page import print_simulation
        from meshwright.app.text.console import page_console

        console = page_console()
        print_simulation(console, simulated, plan, request)
    return EXIT_NO if simulated.missed else EXIT_GOOD
