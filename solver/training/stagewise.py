"""Stages that differ in everything: degrees, micro-batch, sharding, recompute and place of state, each stage its own.

All stages see the same number of micro-batches; a stage with dp replicas cuts each into dp equal parts. For a number of
micro-batches everything that a stage may be is a column of a dense table [first layer, last layer, devices, way], which
`solver.stages.partition` solves exactly. Stages are powers of two of a node's devices, or of whole nodes, so that they always
fill the cluster; each pays for its own sends, over the network whoever its neighbour is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from costmodels.errors import WorkloadError
from solver.control import Stop
from solver.plan import Plan
from solver.request import PlanRequest, Recompute, Space, StageDegrees, TpOverlap
from solver.stages import Partition, partition
from solver.training.costs import TrainingCosts
from solver.training.evaluate import StageSpan
from solver.training.pipelining import PLAIN
from solver.training.search import RELATIVE_TIE
from solver.training.sizes import require_whole_cluster
from solver.training.space import Candidate, families
from solver.training.stage_sizes import sized_request, stage_sizes
from solver.training.stage_table import FloatArray, StageTable
from solver.training.stagewise_plan import StageWay, stagewise_plan
from solver.training.widened import instead_of, widened

MAX_ENTRIES = 8_000_000
"""Entries of a dense table, at most: three arrays of 64 MB."""


@dataclass(frozen=True, eq=False)
class _Way:
    """One way to run a stage of so many devices, under one recompute mode."""

    way: StageWay
    mode: Recompute
    table: StageTable


def check_stage_degrees(request: PlanRequest) -> None:
    """Raise WorkloadError where stages of different degrees are asked for and can't be."""
    search = request.search
    if search.stage_degrees is StageDegrees.SAME:
        return
    if search.space is not Space.FREE:
        raise WorkloadError(
            "no launcher runs stages of different degrees", given="search.stage_degrees: any", allowed="with search.space: free"
        )
    if len(request.cluster.groups) > 1 or not request.model.is_chain or len(search.optimizers) > 1:
        raise WorkloadError(
            "stages of different degrees are searched on equal nodes, for models without branches and one optimizer",
            given={"groups": len(request.cluster.groups), "optimizers": [*search.optimizers]},
            allowed="one node group, a chain of layers, at most one of search.optimizers",
        )
    if TpOverlap.CHUNKED in search.tp_overlap:
        raise WorkloadError(
            "stages that differ do not cut products into chunks", given="search.tp_overlap: chunked", allowed="exposed"
        )
    require_whole_cluster(request, "search.stage_degrees")


def best_stagewise(request: PlanRequest, given: Plan, *, slo_limit_s: float, stop: Stop) -> Plan:
    """The better of ``given``, whose stages have the same degrees, and the best plan of stages that differ, where asked for."""
    if request.search.stage_degrees is StageDegrees.SAME:
        return given
    limit_s = min(slo_limit_s, given.certificate.objective or math.inf)
    best: tuple[Partition, int] | None = None
    ways, finished = _ways(request), True
    for count in sorted(ways):
        if stop():
            finished = False
            break
        found = _partition(request, ways[count], count)
        if found is not None and found.objective_s < limit_s * (1 - RELATIVE_TIE):
            best, limit_s = (found, count), found.objective_s
    bound_s = min(given.certificate.bound or 0.0, limit_s) if given.certificate.bound or given.is_decided else 0.0
    if given.certificate.objective is None and given.is_decided:
        bound_s = limit_s
    return _certified(request, given, best, ways, bound_s if finished else 0.0)


def _certified(
    request: PlanRequest,
    given: Plan,
    best: tuple[Partition, int] | None,
    ways: dict[int, dict[int, list[_Way]]],
    bound_s: float,
) -> Plan:
    objective = given.certificate.objective if best is None else best[0].objective_s
    if objective is None:
        return given
    text = (
        "stages that each have degrees, shardings and memory choices of their own, under 1F1B, on 1, 2, 4 ... whole nodes or, "
        "where nothing moves to hosts, devices of a node"
    )
    certificate = widened(given.certificate, objective, bound_s, by=text)
    if best is None:
        return replace(given, certificate=certificate)
    found, count = best
    sizes = sorted(ways[count])
    chosen = [ways[count][sizes[stage.submesh]][stage.config] for stage in found.stages]
    spans = tuple(StageSpan(stage.first, stage.last, way.mode) for stage, way in zip(found.stages, chosen, strict=True))
    stats = replace(given.search, evaluated=given.search.evaluated + len(ways))
    plan = stagewise_plan(request, [way.way for way in chosen], spans, certificate=certificate, stats=stats)
    return instead_of(given, plan, "stages of the same degrees")


def _ways(request: PlanRequest) -> dict[int, dict[int, list[_Way]]]:
    """Ways to run a stage by the number of micro-batches and the stage's devices; those that others beat left out."""
    found: dict[int, dict[int, list[_Way]]] = {}
    for size in stage_sizes(request):
        sized = sized_request(request, size, pp=2)
        costs = TrainingCosts(sized)
        for family in families(sized):
            if PLAIN not in family.pipelinings:
                continue
            known = found.setdefault(family.n_microbatches, {}).setdefault(size, [])
            for candidate in family.candidates():
                if candidate.pipelining == PLAIN:
                    known += _of_candidate(costs, candidate, size)
    return {count: {size: _unbeaten(ways) for size, ways in by_size.items()} for count, by_size in found.items()}


def _of_candidate(costs: TrainingCosts, candidate: Candidate, size: int) -> Iterator[_Way]:
    kinds = costs.stage_kinds(candidate)
    for sharding in costs.shardings(candidate, kinds):
        table = costs.table(candidate, kinds[0], sharding)
        for row, mode in enumerate(candidate.recompute):
            yield _Way(StageWay(costs, candidate, sharding, size), mode, _only(table, row))


def _only(table: StageTable, row: int) -> StageTable:
    """The table of one recompute mode."""
    return replace(
        table,
        time_s=table.time_s[row : row + 1],
        activation_bytes=table.activation_bytes[row : row + 1],
        transient_bytes=table.transient_bytes[row : row + 1],
        parts=replace(table.parts, host_activation_bytes=table.parts.host_activation_bytes[row : row + 1]),
    )


def _unbeaten(ways: list[_Way]) -> list[_Way]:
    """Ways that no other beats or equals in every cost of every layer; of equal ones the first."""
    if not ways:
        return []
    costs = np.array([_losses(way.table) for way in ways])
    order = np.lexsort((np.arange(len(ways)), costs.sum(axis=1)))
    kept: list[int] = []
    for index in order:
        if not kept or not (costs[kept] <= costs[index]).all(axis=1).any():
            kept.append(int(index))
    return [ways[index] for index in sorted(kept)]


def _losses(table: StageTable) -> FloatArray:
    """Everything of which less is better."""
    host = table.parts.host_activation_bytes[0], table.parts.host_static_bytes, table.parts.nvme_bytes
    columns = (table.time_s[0], table.activation_bytes[0], table.transient_bytes[0], table.static_bytes, table.extra_s, *host)
    return np.concatenate([*columns, [table.boundary_s, table.step_s, -table.capacity_bytes]])


def _partition(request: PlanRequest, ways: dict[int, list[_Way]], count: int) -> Partition | None:
    """The best stages for a number of micro-batches, at least two of them."""
    sizes, n_layers = sorted(ways), len(request.model.layers)
    most = max((len(ways[size]) for size in sizes), default=0)
    if not most or n_layers < 2:
        return None
    if n_layers * n_layers * len(sizes) * most > MAX_ENTRIES:
        raise WorkloadError(
            "too many ways to run a stage to search all of them",
            given=f"{most} ways of one size, {len(sizes)} sizes, {n_layers} layers",
            allowed=f"{MAX_ENTRIES:,} entries of layers x layers x sizes x ways",
            remedy="restrict dp, tp, cp, ep, recompute, zero_stages or microbatch in 'search'",
        )
    shape = (n_layers, n_layers, len(sizes), most)
    times, later, extra = np.full(shape, np.inf), np.full(shape, -1, np.int64), np.zeros(shape)
    for place, size in enumerate(sizes):
        for config, way in enumerate(ways[size]):
            columns = _columns(way.table, count)
            for dense, of_way in zip((times, later, extra), columns, strict=True):
                dense[:, :, place, config] = of_way
    # A stage of all layers is no pipeline.
    times[0, n_layers - 1] = np.inf
    return partition(
        times,
        later,
        submesh_devices=np.array(sizes),
        n_devices=request.cluster.n_devices,
        n_microbatches=count,
        extra_s=extra,
        stage_counts=request.search.pp or None,
    )


def _columns(table: StageTable, count: int) -> tuple[FloatArray, npt.NDArray[np.int64], FloatArray]:
    """Time, later stages that memory allows under 1F1B, and extra of every run of layers."""
    n_layers = table.time_s.shape[1]
    first, last = np.indices((n_layers, n_layers))
    runs = first <= last
    activation, static = _sums(table.activation_bytes[0]), _sums(table.static_bytes)
    room = np.maximum(0.0, table.capacity_bytes) - static - _maxima(table.transient_bytes[0])
    held = np.where(activation > 0, np.floor(room / np.where(activation > 0, activation, 1.0)), np.where(room >= 0, count, -1))
    parts = table.parts
    host = _sums(parts.host_activation_bytes[0])
    spare = parts.host_capacity_bytes - _sums(parts.host_static_bytes)
    on_host = np.where(host > 0, np.floor(spare / np.where(host > 0, host, 1.0)), np.where(spare >= 0, count, -1))
    held = np.minimum(held, on_host)
    held = np.where(_sums(parts.nvme_bytes) <= parts.nvme_capacity_bytes, held, -1)
    # A stage with q behind it holds min(q + 1, count) micro-batches at once.
    later = np.where(held >= count, n_layers, np.maximum(held - 1, -1)).astype(np.int64)
    extra = _sums(table.extra_s) + np.where(first > 0, table.step_s, 0.0)
    times = np.where(runs & (later >= 0), _sums(table.time_s[0]) + table.boundary_s, np.inf)
    return times, later, np.where(runs, extra, 0.0)


def _sums(by_layer: FloatArray) -> FloatArray:
    """``[first, last]`` sums; 0 below the diagonal."""
    running = np.concatenate([[0.0], np.cumsum(by_layer)])
    return np.triu(running[None, 1:] - running[:-1, None])


def _maxima(by_layer: FloatArray) -> FloatArray:
    """``[first, last]`` maxima; 0 below the diagonal."""
    n = len(by_layer)
    return np.triu(np.maximum.accumulate(np.triu(np.broadcast_to(by_layer, (n, n))), axis=1))
