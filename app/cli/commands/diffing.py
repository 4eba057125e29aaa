"""``diff``: what moves between devices when a training run goes from one plan to another."""

from __future__ import annotations

from typing import Any

from meshwright.app.cli.commands.exits import print_json
from meshwright.app.cli.commands.planning import Output
from meshwright.app.cli.commands.stored_plans import given_plan_document
from meshwright.app.errors import EXIT_GOOD
from meshwright.app.plans.documents import read_plan_document
from meshwright.app.requests.files import STDIN
from meshwright.app.settings import Settings
from meshwright.app.switches import devices_left
from meshwright.costmodels.errors import InfeasibleError, InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.switching import Switch, Traffic, switch_bytes

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
        from meshwright.app.cli.pages.diff_page import print_diff
        from meshwright.app.text.console import page_console

        console = page_console()
        print_diff(console, switch, old, new)
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


def _sums(traffic: Traffic) -> dict[str, float]:
    return {name: float(values.sum()) for name, values in _columns(traffic).items()}


def _columns(traffic: Traffic) -> dict[str, Any]:
    return {
        "kept_bytes": traffic.kept,
        "from_node_bytes": traffic.from_node,
        "from_network_bytes": traffic.from_network,
        "from_storage_bytes": traffic.from_storage,
        "to_node_bytes": traffic.to_node,
        "to_network_bytes": traffic.to_network,
    }
