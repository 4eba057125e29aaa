"""The memory that a search may take, measured as what its process has grown by since the search began.

Measured is resident memory, as the kernel counts it: what the search keeps, and what is loaded and compiled for it meanwhile.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, replace
from pathlib import Path

from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Status
from meshwright.solver.problem.search import DEFAULT_MEMORY_LIMIT_BYTES, Search

MEASURED_EVERY_S = 0.05
"""Time between two measurements: one takes some tens of microseconds, and searches ask thousands of times a second."""

_STATM = Path("/proc/self/statm")
"""Sizes of this process in pages, the second of them resident (proc(5))."""


@dataclass(slots=True)
class MemoryLimit:
    """Ends a search once this process has grown by more than ``limit_bytes``; once reached, it stays so."""

    limit_bytes: int
    held_bytes: int
    measured_s: float = -MEASURED_EVERY_S
    reached: bool = False

    @staticmethod
    def of(search: Search) -> MemoryLimit:
        """The limit of a search that begins now."""
        return MemoryLimit(search.memory_limit_bytes or DEFAULT_MEMORY_LIMIT_BYTES, resident_bytes())

    def __call__(self) -> bool:
        """Return True if the limit is reached."""
        now_s = time.monotonic()
        if not self.reached and now_s - self.measured_s >= MEASURED_EVERY_S:
            self.measured_s = now_s
            self.reached = resident_bytes() - self.held_bytes > self.limit_bytes
        return self.reached


def resident_bytes() -> int:
    """Return the memory that this process holds now."""
    return int(_STATM.read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def said_of_memory(plan: Plan, limit: MemoryLimit) -> Plan:
    """The answer of a search, with a note if its memory limit left it a gap, or undecided, and what to try."""
    if not limit.reached or plan.certificate.status in (Status.OPTIMAL, Status.INFEASIBLE):
        return plan
    remedy = f"raise search.memory_limit_bytes, now {limit.limit_bytes}"
    reason = plan.reason
    if reason is not None and not plan.feasible:
        reason = replace(reason, remedies=(remedy, *reason.remedies))
    note = f"the search was ended by its memory limit, not by its time: {remedy}, for a smaller gap"
    return replace(plan, reason=reason, notes=(*plan.notes, note))
