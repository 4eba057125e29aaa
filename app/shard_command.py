"""What ``meshwright shard`` does: read a problem, solve it within a time or work limit, give the answer as a dict."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.importers.iopddl import read_sharding_problem
from costmodels.errors import InvalidInputError
from solver.sharding_problem.solve import Status, solve
from solver.sharding_problem.work import WorkLimit, WorkStop

_RESERVE_S, _RESERVE_SHARE = 1.0, 0.04
"""Time kept back for the interpreter's start and exit, and for the last step to notice the deadline."""


@dataclass(frozen=True)
class Deadline:
    """Stops when the clock passes ``end_s``; both in seconds of ``time.monotonic``."""

    start_s: float
    end_s: float

    def __call__(self) -> bool:
        """Whether the deadline is past."""
        return time.monotonic() >= self.end_s

    def spend(self, work: float) -> None:
        """A deadline looks at its clock, not at the work."""

    def used(self) -> float:
        """Share of the time gone."""
        return (time.monotonic() - self.start_s) / max(self.end_s - self.start_s, 1e-9)


def run_shard(path: str | Path, *, time_limit_s: float | None, work_limit: float | None, seed: int) -> dict[str, Any]:
    """Solve a problem file; the answer has solution, cost, bound, gap, status, feasible, seconds and counts of work.

    With a time limit, reading included, the answer may vary with the machine; with a work limit it may not. Neither
    limit runs to the proven optimum. Raises InvalidInputError for a bad file or both limits.
    """
    started_s = time.monotonic()
    stop = stop_rule(started_s, time_limit_s, work_limit)
    problem = read_sharding_problem(Path(path))
    answer = solve(problem, stop=stop, seed=seed)
    return {
        "name": problem.name,
        "solution": None if answer.solution is None else list(answer.solution),
        "cost": answer.cost,
        "bound": answer.bound,
        "gap": answer.gap,
        "status": answer.status.value,
        "feasible": answer.status in (Status.OPTIMAL, Status.FEASIBLE),
        "seconds": round(time.monotonic() - started_s, 3),
        "core_nodes": answer.work.core_nodes,
        "core_entries": answer.work.core_entries,
        "sweeps": answer.work.sweeps,
        "windows": answer.work.windows,
    }


def stop_rule(started_s: float, time_limit_s: float | None, work_limit: float | None) -> WorkStop:
    """The stopping rule of these options, neither of which runs to the end; raises InvalidInputError for both at once."""
    if time_limit_s is not None and work_limit is not None:
        raise InvalidInputError("give a time limit or a work limit, not both")
    if time_limit_s is None:
        return WorkLimit(float("inf") if work_limit is None else work_limit)
    if not time_limit_s > 0:
        raise InvalidInputError("a time limit must be positive", given=time_limit_s, allowed="seconds above 0")
    reserve_s = _RESERVE_S + _RESERVE_SHARE * time_limit_s
    return Deadline(started_s, started_s + max(time_limit_s - reserve_s, 0.5 * time_limit_s))
