"""Sharding the whole model of a training request over a mesh: strategies of every operator and the number of micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.costmodels.errors import WorkloadError
from meshwright.costmodels.memory.training_state import framework_overhead_bytes
from meshwright.solver.control import OnProgress
from meshwright.solver.problem.request import TrainingRequest, TrainingWorkload
from meshwright.solver.sharding_problem.solve import Status
from meshwright.solver.sharding_problem.work import WorkStop
from meshwright.solver.strategies.device_mesh import DeviceMesh
from meshwright.solver.strategies.graph_costs import GraphCosts
from meshwright.solver.strategies.operator_graph import Ties, unfolded
from meshwright.solver.strategies.pricing import TrainingStep
from meshwright.solver.strategies.solve import GraphSharding, shard_graph


@dataclass(frozen=True)
class ModelSharding:
    """The best sharding over all numbers of micro-batches that divide the global batch.

    status          optimal, feasible, infeasible (none fits) or unknown (stopped before one was found)
    best            None where none was found; its ``bound_s`` is of its own number of micro-batches
    bound_s         proven least time of a step over all of them; None for an infeasible request
    least_peak_bytes   where nothing fits: the least that the fastest sharding of some number of micro-batches needs
    """

    status: Status
    microbatches: int | None
    costs: GraphCosts | None
    best: GraphSharding | None
    bound_s: float | None
    memory_bytes: float
    least_peak_bytes: float | None

    @property
    def gap(self) -> float | None:
        """(step - bound) / step; None without an answer."""
        if self.best is None or self.best.step_s is None or self.bound_s is None:
            return None
        return (self.best.step_s - self.bound_s) / self.best.step_s if self.best.step_s > 0 else 0.0


def shard_model(
    request: TrainingRequest,
    mesh: DeviceMesh,
    *,
    ties: Ties,
    stop: WorkStop,
    seed: int = 0,
    progress: OnProgress | None = None,
) -> ModelSharding:
    """The fastest sharding of a request's model over a mesh, nothing recomputed, each device within its memory.

    Raises ModelError for a model that is no chain of blocks, WorkloadError for packed documents.
    """
    workload = request.workload
    if workload.documents is not None:
        raise WorkloadError("shardings are not priced under masks of documents", given="workload.lengths", allowed="without it")
    axes = sum(axis.size > 1 for axis in mesh.axes)
    memory_bytes = mesh.device.memory_bytes * (1.0 - request.cluster.memory_reserve) - framework_overhead_bytes(
        communicators=axes, communicator_bytes=mesh.device.communicator_bytes
    )
    best: tuple[GraphSharding, GraphCosts] | None = None
    bounds: list[float] = []
    peaks: list[float] = []
    is_decided = True
    for microbatches in _divisors(workload.global_batch):
        if stop():
            bounds.append(0.0)
            is_decided = False
            break
        costs = _costs(request, workload, mesh, ties, microbatches)
        found = shard_graph(costs, memory_bytes=memory_bytes, stop=stop, seed=seed, progress=progress)
        if found.fastest_peak_bytes is not None:
            peaks.append(found.fastest_peak_bytes)
        if found.status is not Status.INFEASIBLE:
            bounds.append(found.bound_s or 0.0)
            is_decided &= found.status is not Status.UNKNOWN
        if found.step_s is not None and (best is None or best[0].step_s is None or found.step_s < best[0].step_s):
            best = found, costs
    if best is None:
        status = Status.INFEASIBLE if is_decided else Status.UNKNOWN
        bound_s = None if is_decided else min(bounds, default=0.0)
        return ModelSharding(status, None, None, None, bound_s, memory_bytes, min(peaks, default=None))
    sharding, costs = best
    assert sharding.step_s is not None, "only shardings that were found are kept"
    bound_s = min(*bounds, sharding.step_s)
    status = Status.OPTIMAL if bound_s == sharding.step_s else Status.FEASIBLE
    return ModelSharding(status, costs.step.microbatches, costs, sharding, bound_s, memory_bytes, None)


def _costs(request: TrainingRequest, workload: TrainingWorkload, mesh: DeviceMesh, ties: Ties, microbatches: int) -> GraphCosts:
    graph = unfolded(
        request.model, batch=workload.global_batch // microbatches, seq_len=workload.seq_len, recipe=workload.matmul
    )
    step = TrainingStep(
        dtype=workload.precision,
        gradient_dtype=workload.gradient_dtype,
        optimizer=workload.optimizer,
        microbatches=microbatches,
    )
    return GraphCosts(graph, mesh, step, ties)


def _divisors(number: int) -> Iterator[int]:
    return (divisor for divisor in range(1, number + 1) if number % divisor == 0)
