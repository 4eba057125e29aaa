"""The progress of a running job: how far its search is, and the best plan so far, as JSON texts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from meshwright.app.documents.json_text import compact_json
from meshwright.app.plans.documents import read_plan
from meshwright.app.plans.keyed import KeyedRequest, plan_text
from meshwright.solver.answer.document import record_of
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import Progress


class News:
    """Turns the progress of one attempt into texts; remembers what it said of the best plan, which does not come every time.

    earlier   document of the best plan that attempts before this one found: no worse one takes its place
    """

    def __init__(self, key: KeyedRequest, *, earlier: str | None = None):
        self._key = key
        plan = None if earlier is None else read_plan(json.loads(earlier))
        self._best: float | None = None if plan is None else plan.certificate.objective
        self._earlier = self._best
        self._best_plan = None if plan is None or earlier is None else _summary(plan, earlier)

    def texts(self, progress: Progress) -> tuple[str, str | None]:
        """The progress, and the document of the best plan if there is a new one."""
        plan = None if progress.incumbent is None else progress.incumbent()
        document = plan_text(plan, self._key) if plan is not None and self._is_better(plan) else None
        if plan is not None and document is not None:
            self._best, self._best_plan = plan.certificate.objective, _summary(plan, document)
        best, bound = progress.best, progress.bound
        gap = None if not best or bound is None else abs(best - bound) / abs(best)
        fields = {"done": progress.done, "total": progress.total, "best": best, "bound": bound, "gap": gap}
        return compact_json(fields | {"note": progress.note, "best_plan": self._best_plan}), document

    @property
    def is_further(self) -> bool:
        """True once the attempt has a better plan than all attempts before it."""
        return self._best is not None and (self._earlier is None or self._best < self._earlier)

    def _is_better(self, plan: Plan) -> bool:
        """Return True if a plan is no worse than the best so far; objectives are made as small as possible."""
        objective = plan.certificate.objective
        return self._best is None or (objective is not None and objective <= self._best)


def _summary(plan: Plan, document: str) -> dict[str, Any]:
    """Return the summary of a best plan that an event holds."""
    fields = record_of(plan)
    assert plan.predicted is not None and fields.axes is not None, "only feasible plans are the best so far"
    return {
        "digest": f"sha256:{hashlib.sha256(document.encode()).hexdigest()}",
        "objective": plan.certificate.objective,
        "unit": plan.certificate.unit,
        "bound": plan.certificate.bound,
        "gap": plan.certificate.gap,
        "devices": plan.devices,
        "tokens_per_s": plan.predicted.tokens_per_s,
        "peak_memory_bytes": plan.predicted.peak_memory_bytes,
        "axes": asdict(fields.axes),
        "microbatch": None if fields.microbatch is None else asdict(fields.microbatch),
        "schedule": fields.schedule,
    }
