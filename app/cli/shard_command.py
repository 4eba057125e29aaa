"""The work of ``meshwright shard``: read a problem, solve it within a time or work limit, give the answer as a dict."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.app.importers.iopddl import read_sharding_problem
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.sharding_problem.problem import ShardingProblem
from meshwright.solver.sharding_problem.solve import ShardingAnswer, Status, solve
from meshwright.solver.sharding_problem.work import WorkLimit, WorkStop

_RESERVE_CPU_S, _RESERVE_SHARE = 1.0, 0.04
"""Kept back for the interpreter's start and exit and for the last step to notice the deadline: processor time, and a share
of the limit."""


@dataclass(frozen=True)
class Deadline:
    """Stops before the clock passes ``end_s``, in seconds of ``time.monotonic``; ``start_cpu_s`` of ``time.process_time``.

    What is kept back is processor time: where others share the core, it takes as much longer as all before it took.
    """

    start_s: float
    start_cpu_s: float
    end_s: float

    def __call__(self) -> bool:
        """Return True if the solve is to stop now."""
        return self.seconds_left() <= 0

    def spend(self, work: float) -> None:
        """A deadline looks at its clock, not at the work."""

    def used(self) -> float:
        """Share of the time gone."""
        gone_s = time.monotonic() - self.start_s
        return gone_s / max(gone_s + self.seconds_left(), 1e-9)

    def seconds_left(self) -> float:
        """Seconds until it stops; below 0 once it should have."""
        now_s = time.monotonic()
        limit_s = self.end_s - self.start_s
        reserve_s = _RESERVE_CPU_S * self._slowdown(now_s) + _RESERVE_SHARE * limit_s
        return self.end_s - min(reserve_s, 0.5 * limit_s) - now_s

    def _slowdown(self, now_s: float) -> float:
        """Seconds that passed for each second that this process ran, since the start."""
        gone_s, ran_s = now_s - self.start_s, time.process_time() - self.start_cpu_s
        return max(1.0, gone_s / max(ran_s, _RESERVE_CPU_S))


def run_shard(
    path: str | Path, *, time_limit_s: float | None, work_limit: float | None, seed: int, confirm: str | None = None
) -> dict[str, Any]:
    """Solve a problem file; the answer has solution, cost, bound, gap, status, feasible, seconds and counts of work.

    With a time limit, reading included, the answer may vary with the machine; with a work limit it may not. Neither
    limit runs to the proven optimum. ``confirm`` names a solver that PuLP reaches, which is asked for a second opinion, for
    as long as the time limit. Raises InvalidInputError for a bad file, both limits or a solver that is not there.
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
        "second_opinion": None if confirm is None else _second_opinion(problem, answer, confirm, time_limit_s),
    }


def _second_opinion(problem: ShardingProblem, answer: ShardingAnswer, solver: str, limit_s: float | None) -> dict[str, Any]:
    # PuLP takes as long to import as small problems take to solve.
    from meshwright.solver.sharding_problem.second_opinion import second_opinion

    opinion = second_opinion(problem, answer, solver=solver, limit_s=limit_s)
    return {"solver": opinion.solver, "verdict": opinion.verdict.value, "cost": opinion.cost}


def stop_rule(started_s: float, time_limit_s: float | None, work_limit: float | None) -> WorkStop:
    """The stopping rule of these options, neither of which runs to the end; raises InvalidInputError for both at once."""
    if time_limit_s is not None and work_limit is not None:
        raise InvalidInputError("give a time limit or a work limit, not both")
    if time_limit_s is None:
        return WorkLimit(float("inf") if work_limit is None else work_limit)
    if not time_limit_s > 0:
        raise InvalidInputError("a time limit must be positive", given=time_limit_s, allowed="seconds above 0")
    return Deadline(started_s, time.process_time(), started_s + time_limit_s)
