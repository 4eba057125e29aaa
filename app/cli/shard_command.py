"""The work of ``meshwright shard``: read a problem, solve it within a time or work limit, give the answer as a dict."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from meshwright.app.base.digits import is_digits
from meshwright.app.models.iopddl import read_sharding_problem
from meshwright.costmodels.calibration.calibration import calibrations_in_force
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import InvalidInputError, WorkloadError
from meshwright.solver.problem.request import PlanRequest, TrainingRequest
from meshwright.solver.sharding_problem.problem import ShardingProblem
from meshwright.solver.sharding_problem.solve import ShardingAnswer, SolveStatus, solve
from meshwright.solver.sharding_problem.work import WorkLimit, WorkStop
from meshwright.solver.strategies.device_mesh import device_mesh
from meshwright.solver.strategies.graph_costs import GraphCosts, OperatorChoice, communication
from meshwright.solver.strategies.operator_graph import Ties
from meshwright.solver.strategies.solve import ModelSharding, shard_model

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
        "feasible": answer.status in (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE),
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


# The work of ``meshwright shard --model``: the operators of a request's model sharded over a mesh, the answer as a dict.

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelShardingQuestion:
    """Options of ``shard --model``; ``mesh`` is empty for nodes x devices of a node."""

    request: PlanRequest
    mesh: Mapping[str, int]
    ties: Ties
    time_limit_s: float | None
    work_limit: float | None
    seed: int


def run_model_sharding(question: ModelShardingQuestion) -> Json:
    """The best sharding with its certificate, figures, strategies and communication.

    Raises InvalidInputError for a mesh that the cluster doesn't have or a request that can't be sharded so.
    """
    request = question.request
    if not isinstance(request, TrainingRequest):
        raise WorkloadError("sharding a model needs a training workload", given=request.workload.kind, allowed="training")
    with calibrations_in_force(request.calibrations):
        return _answer(question, request)


def _answer(question: ModelShardingQuestion, request: TrainingRequest) -> Json:
    started_s = time.monotonic()
    degrees = question.mesh or default_mesh(request.cluster)
    found = shard_model(
        request,
        device_mesh(request.cluster, degrees),
        ties=question.ties,
        stop=stop_rule(started_s, question.time_limit_s, question.work_limit),
        seed=question.seed,
    )
    return {
        "name": request.model.name,
        "mesh": dict(degrees),
        "status": found.status.value,
        "feasible": found.status in (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE),
        "step_time_s": None if found.best is None else found.best.step_s,
        "bound_s": found.bound_s,
        "gap": found.gap,
        "microbatches": found.microbatches,
        "peak_memory_bytes": found.peak_bytes,
        "memory_limit_bytes": found.memory_bytes,
        "least_peak_bytes": found.least_peak_bytes,
        **_details(found),
        "seconds": round(time.monotonic() - started_s, 3),
    }


def parse_mesh(text: str | None) -> dict[str, int]:
    """Axes from outer to inner of "data=8,tensor=8"; empty without text."""
    degrees: dict[str, int] = {}
    for part in (text or "").split(",") if text else ():
        name, _, size = part.strip().partition("=")
        if not name or not is_digits(size) or name in degrees or int(size) < 1:
            raise InvalidInputError(
                "this mesh can't be read", given=text, allowed="NAME=SIZE,NAME=SIZE,... from outer to inner, names distinct"
            )
        degrees[name] = int(size)
    return degrees


def default_mesh(cluster: Cluster) -> dict[str, int]:
    """Nodes and the devices of a node; one axis where either is one."""
    inner = cluster.groups[0].node.devices_per_node
    degrees = {"node": cluster.n_devices // inner, "device": inner}
    return {name: size for name, size in degrees.items() if size > 1} or {"device": 1}


def _details(found: ModelSharding) -> Json:
    if found.best is None or found.costs is None or found.best.choices is None:
        return {"classes": None, "operators": [], "communication": []}
    costs, choices = found.costs, found.best.choices
    return {
        "classes": len(choices),
        "operators": [_operator(costs, index, choice) for index, choice in enumerate(choices)],
        "communication": _sent(costs, choices),
    }


def _operator(costs: GraphCosts, index: int, choice: OperatorChoice) -> Json:
    priced, members = costs.of_class(index), costs.folding.members[index]
    names = priced.placed.name(priced.assignments[choice.assignment])
    axes = [axis.name for axis in costs.mesh.axes]
    return {
        "block": costs.graph.nodes[members[0]].block,
        "operator": costs.graph.nodes[members[0]].operator.name,
        "layers": _ranges([costs.graph.nodes[node].layer for node in members]),
        "count": len(members),
        "axes": dict(zip(axes, names, strict=True)),
        "weights_split_over": [axes[axis] for axis in priced.storages[choice.storage].axes],
    }


def _ranges(layers: list[int]) -> list[list[int]]:
    """[first, last] of each run of neighbours."""
    distinct = sorted(set(layers))
    runs = [[layer for _, layer in run] for _, run in groupby(enumerate(distinct), key=lambda pair: pair[1] - pair[0])]
    return [[run[0], run[-1]] for run in runs]


def _sent(costs: GraphCosts, choices: tuple[OperatorChoice, ...]) -> list[Json]:
    """Return the bytes that each device sends in a step, by purpose, phase, collective and axes."""
    totals: dict[tuple[str, str, str, tuple[str, ...]], list[float]] = {}
    for sent in communication(costs, choices):
        total = totals.setdefault((sent.purpose.value, sent.phase.value, sent.collective.value, sent.axes), [0.0, 0.0])
        total[0] += sent.bytes_sent
        total[1] += sent.seconds
    return [
        {
            "purpose": purpose,
            "phase": phase,
            "collective": collective,
            "axes": list(axes),
            "bytes_sent": bytes_sent,
            "seconds": seconds,
        }
        for (purpose, phase, collective, axes), (bytes_sent, seconds) in sorted(totals.items(), key=lambda item: -item[1][0])
        if bytes_sent > 0
    ]
