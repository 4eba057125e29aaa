"""Sharding a whole graph of operators over an n-D mesh: one strategy for each, with a certified bound.

First without regard to memory: the folded graph of a model is nearly series-parallel and solved exactly. Where that answer
does not fit, the engine solves the problem with live ranges under the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.solver.control import OnProgress
from meshwright.solver.sharding_problem.solve import Status, solve
from meshwright.solver.sharding_problem.work import WorkStop
from meshwright.solver.strategies.graph_costs import NS_PER_S, Choice, GraphCosts
from meshwright.solver.strategies.problem import BuiltProblem, within_memory, without_limit


@dataclass(frozen=True)
class GraphSharding:
    """The answer.

    status      optimal, feasible, infeasible (nothing fits) or unknown (stopped before a choice was found)
    choices     what each class of operators does; None where nothing was found
    step_s      predicted time of a step, and ``bound_s`` the proven least; None where there is none
    peak_bytes  most memory in use on a device
    fastest_peak_bytes   the same of the fastest choice whatever memory it takes
    problem     the engine's last problem, which another solver may take
    """

    status: Status
    choices: tuple[Choice, ...] | None
    step_s: float | None
    bound_s: float | None
    peak_bytes: float | None
    problem: BuiltProblem
    fastest_peak_bytes: float | None = None

    @property
    def gap(self) -> float | None:
        """(step - bound) / step; None without a choice."""
        if self.step_s is None or self.bound_s is None:
            return None
        return (self.step_s - self.bound_s) / self.step_s if self.step_s > 0 else 0.0


def shard_graph(
    costs: GraphCosts, *, memory_bytes: float | None, stop: WorkStop, seed: int = 0, progress: OnProgress | None = None
) -> GraphSharding:
    """The fastest strategies of a graph that fit ``memory_bytes`` of a device (None: any)."""
    free = _solved(without_limit(costs), stop, seed, progress)
    if memory_bytes is None or (free.peak_bytes is not None and free.peak_bytes <= memory_bytes):
        return replace(free, fastest_peak_bytes=free.peak_bytes)
    limited = _solved(within_memory(costs, int(memory_bytes)), stop, seed, progress)
    limited = replace(limited, fastest_peak_bytes=free.peak_bytes)
    if limited.bound_s is None or free.bound_s is None:
        return limited
    # Less freedom is never faster: the bound without the limit holds under it.
    return replace(limited, bound_s=max(limited.bound_s, free.bound_s))


def _solved(built: BuiltProblem, stop: WorkStop, seed: int, progress: OnProgress | None) -> GraphSharding:
    answer = solve(built.problem, stop=stop, seed=seed, progress=progress)
    bound_s = None if answer.bound is None else answer.bound / NS_PER_S
    if answer.solution is None or answer.cost is None:
        return GraphSharding(answer.status, None, None, bound_s, None, built)
    choices = tuple(built.choices(answer.solution))
    return GraphSharding(
        answer.status, choices, answer.cost / NS_PER_S, bound_s, built.costs.peak_bytes(choices), built
    )  # fmt: skip


def step_ns(costs: GraphCosts, choices: Sequence[Choice]) -> int:
    """Time of a step of given choices, added up class by class and edge by edge."""
    total = 0
    for index, choice in enumerate(choices):
        total += int(costs.class_cost_ns(index)[choice.assignment]) + int(costs.storage_cost_ns(index)[choice.storage])
    for edge in costs.class_edges:
        total += int(costs.edge_cost_ns(edge)[choices[edge.source].assignment, choices[edge.target].assignment])
    return total
