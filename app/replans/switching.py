"""The cost of going from an old plan to the new one, worked out before anything is locked."""

from __future__ import annotations

import json

from meshwright.app.plans.documents import join_texts, read_plan_document
from meshwright.app.plans.repository import StoredPlan
from meshwright.app.replans.outcome import SwitchCost
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.switching import switch_bytes


class SwitchCosts:
    """Switches that have been worked out, by the digests of the two plans."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], SwitchCost | None] = {}

    def between(self, old: StoredPlan, new: StoredPlan) -> SwitchCost | None:
        """The cost of a switch; None where there is none: a plan that serves or is infeasible, another model or state."""
        key = (old.digest, new.digest)
        if key not in self._known:
            self._known[key] = _cost(old, new) if old.feasible and new.feasible else None
        return self._known[key]


def _cost(old: StoredPlan, new: StoredPlan) -> SwitchCost | None:
    try:
        before, after = (read_plan_document(json.loads(join_texts(plan.plan, plan.request))) for plan in (old, new))
        switch = switch_bytes(before, after)
    except InvalidInputError:
        # Also a plan of an older version that can't be read any more: what it moves is not known.
        return None
    return SwitchCost(round(switch.moved_bytes), round(switch.storage_bytes), switch.time_s)
