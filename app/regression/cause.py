"""Why a plan got worse, in one line, and what would fix it: from the inputs that changed and where the plan's time goes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from meshwright.app.regression.inputs import InputChange, shown
from meshwright.app.regression.locked_plan import LockedPlan
from meshwright.app.regression.report import FindingRule
from meshwright.app.regression.structure_diff import layout_changes
from meshwright.app.text.figures import seconds
from meshwright.solver.answer.plan import Plan

SHOWN_CHANGES = 2
SHOWN_REMEDIES = 2


class Driver(Enum):
    """The figure that a plan got worse by; the patterns name inputs that can cause that, the likeliest first."""

    MEMORY = (
        r"device\.memory_bytes$|memory_reserve$",
        r"\.nodes$|devices_per_node$",
        r"^model\.(layers|dims)\.",
        r"^workload\.",
        r"^search\.",
    )
    COMMUNICATION = (
        r"\.(intra|inter)\.|oversubscription$",
        r"\.nodes$|devices_per_node$",
        r"^calibration\.collectives",
        r"^search\.",
        r"^model\.(layers|dims)\.",
    )
    COMPUTE = (
        r"^model\.(layers|dims)\.",
        r"\.nodes$|devices_per_node$",
        r"peak_flops|memory_bytes_per_s$",
        r"^workload\.",
        r"^calibration\.kernels",
        r"^search\.",
    )
    TARGET = (r"^slo\.", r"^workload\.", r"^model\.(layers|dims)\.", r"\.(intra|inter)\.", r"\.nodes$")
    PRICE = (r"price_per_hour$", r"\.nodes$", r"^model\.(layers|dims)\.")

    def rank(self, change: InputChange) -> tuple[int, int, str]:
        """Sorts changes: the likeliest cause first, names and order last."""
        patterns: tuple[str, ...] = self.value
        place = next((i for i, pattern in enumerate(patterns) if re.search(pattern, change.field)), len(patterns))
        return place, int(bool(re.search(r"(^model\.order|\.name|^cluster\.order)$", change.field))), change.field


COMMUNICATION_PARTS = frozenset({"tp_comm_s", "cp_comm_s", "pp_comm_s", "dp_comm_s", "ep_comm_s"})
PART_NAMES = {
    "compute_s": "compute",
    "recompute_s": "recompute",
    "tp_comm_s": "tp communication",
    "cp_comm_s": "cp communication",
    "ep_comm_s": "ep communication",
    "pp_comm_s": "pp communication",
    "dp_comm_s": "dp communication",
    "bubble_s": "bubble",
    "optimizer_s": "optimizer",
    "prefill_s": "prefill",
    "decode_step_s": "decode step",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A locked plan, the one of now, the inputs that changed between them, and how to accept the plan of now."""

    was: LockedPlan
    now: LockedPlan
    plan: Plan
    changes: tuple[InputChange, ...]
    accept: str


def cause_of(rule: FindingRule, given: Comparison) -> str:
    """The likeliest changed inputs, and what they did to the plan."""
    ranked = _ranked(rule, given)
    effects = "; ".join(_effects(given))
    if not ranked:
        return "; ".join(part for part in (_unexplained(given), effects) if part)
    named = ", ".join(str(change) for change in ranked[:SHOWN_CHANGES])
    more = len(ranked) - SHOWN_CHANGES
    inputs = f"{named} and {more} more" if more > 0 else named
    return f"{inputs}: {effects}" if effects else inputs


def fix_of(rule: FindingRule, given: Comparison) -> str:
    """Return the change that would make the plan as good as it was, and the way to accept it as it is."""
    options: list[str] = []
    if rule in (FindingRule.FEASIBILITY, FindingRule.SLO) and given.plan.reason is not None:
        options += given.plan.reason.remedies[:SHOWN_REMEDIES]
    if rule is FindingRule.MEMORY:
        options.append("raise cluster.memory_reserve, or lower min_memory_headroom_bytes in the policy")
    own = [change for change in _ranked(rule, given) if not change.is_of_meshwright]
    if own:
        options.append(_undo(own[0]))
    if rule is not FindingRule.MEMORY:
        options.append(f"if it is meant: {given.accept}")
    return "; or ".join(options)


def _undo(change: InputChange) -> str:
    if change.was is None:
        return f"remove {change.field}"
    return f"put {change.field} back to {shown(change.was)}"


def _ranked(rule: FindingRule, given: Comparison) -> list[InputChange]:
    return sorted(given.changes, key=_driver(rule, given).rank)


def _driver(rule: FindingRule, given: Comparison) -> Driver:
    shortfall = given.now.shortfall
    if rule is FindingRule.MEMORY or (shortfall is not None and "memory" in shortfall.constraint):
        return Driver.MEMORY
    if shortfall is not None or rule is FindingRule.SLO:
        return Driver.TARGET
    if rule is FindingRule.COST and any(change.field.endswith("price_per_hour") for change in given.changes):
        return Driver.PRICE
    part = _grown_most(given.was.times_s, given.now.times_s)
    return Driver.COMMUNICATION if part in COMMUNICATION_PARTS else Driver.COMPUTE


def _effects(given: Comparison) -> list[str]:
    was, now = given.was.times_s, given.now.times_s
    part = _grown_most(was, now)
    effects = []
    if part is not None:
        effects.append(f"{PART_NAMES.get(part, part)} {seconds(was.get(part, 0.0))} -> {seconds(now[part])}")
    if given.now.feasible and given.was.feasible:
        effects += layout_changes(given.was.structure, given.now.structure)[:1]
    return effects


def _grown_most(was: Mapping[str, float], now: Mapping[str, float]) -> str | None:
    """The part of the time that grew by most; None when none did, or one of the plans has no times."""
    grown = {name: now[name] - was.get(name, 0.0) for name in now} if was else {}
    part = max(sorted(grown), key=grown.__getitem__, default=None)
    return part if part is not None and grown[part] > 0 else None


def _unexplained(given: Comparison) -> str:
    if given.was.digest != given.now.digest:
        return "the request changed only in what no plan should depend on, as the sources of figures"
    return (
        "no input and no version changed: solver or cost models changed without a new version, or another build "
        "of Meshwright wrote the lock"
    )
