"""Stages that differ in everything: degrees, micro-batch, sharding, recompute and place of state, each stage its own.

All stages see the same number of micro-batches; a stage with dp replicas cuts each into dp equal parts. The pipeline goes
through the node groups in order, each stage inside one of them. For a number of micro-batches everything that a stage may be is
a column of a dense table [first layer, last layer, devices and place, way], which `solver.stages.partition` solves exactly.
Stages are parts of a node that fill it, or whole nodes, so that they always fill their group; each pays for its own sends,
over the network whoever its neighbour is, and from group to group over the slower one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.cluster.cluster import NodeType
from meshwright.costmodels.compiling import kept_compiled
from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.answer.arrangement import Arrangement, arranged, in_arrangement
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import OnProgress, Stop, heed, unit_of_work
from meshwright.solver.problem.carried_choices import OF_MESHES
from meshwright.solver.problem.choices import GroupOrder, Space, StageDegrees, TpOverlap
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.stages import Partition, partition
from meshwright.solver.training.costs.evaluate import StageSpan, compute_bound_s
from meshwright.solver.training.forms.stagewise.record import StageWay, stagewise_plan
from meshwright.solver.training.forms.stagewise.stage_sizes import (
    Borders,
    StageBegin,
    Way,
    every_border,
    places,
    sized_request,
    stage_sizes,
    stage_ways,
)
from meshwright.solver.training.forms.uniform.device_orders import other_arrangements
from meshwright.solver.training.report.device_counts import require_whole_cluster
from meshwright.solver.training.report.plan_report import instead_of, still_open, widened
from meshwright.solver.training.search.best_first import RELATIVE_TIE

# Runs of layers as stages: for a size and place of stages, every way to run each run of layers that no other beats there.

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FIRST_ROOM = 8
"""Ways of a run of layers that there is room for at first; doubled where there are more."""


class Runs(NamedTuple):
    """``[first, last, :number[first, last]]`` are the ways of a run of layers: time, extra, later stages that memory allows
    under 1F1B, and which way it is."""

    number: Ints
    time_s: Floats
    extra_s: Floats
    later: Ints
    way: Ints


def unbeaten_runs(ways: list[Way], border: int, *, n_microbatches: int, below_s: float, stop: Stop) -> Runs:
    """For every run of layers the ways that no other equals or beats in time, extra and memory, between one of the borders;
    those left out whose micro-batches take ``below_s`` by themselves, and all of a run that is the whole model. Raises
    SearchStopped."""
    n_layers = ways[0].table.time_s.shape[1]
    runs = _roomier(None, n_layers)
    for index, way in enumerate(ways):
        heed(stop)
        while int(runs.number.max()) == runs.time_s.shape[2]:
            runs = _roomier(runs, n_layers)
        table, parts = way.table, way.table.parts
        by_layer = (
            *(table.time_s[0], table.extra_s, table.static_bytes, table.activation_bytes[0], table.transient_bytes[0]),
            *(parts.host_static_bytes, parts.host_activation_bytes[0], parts.nvme_bytes),
        )
        _add_way(
            runs,
            index,
            np.array(by_layer),
            np.array([max(0.0, table.capacity_bytes), parts.host_capacity_bytes, parts.nvme_capacity_bytes]),
            way.boundary_s[border],
            table.step_s,
            n_microbatches,
            below_s / n_microbatches,
        )
    return runs


def _roomier(runs: Runs | None, n_layers: int) -> Runs:
    """The same with room for twice as many ways of a run."""
    if runs is None:
        shape = (n_layers, n_layers, FIRST_ROOM)
        return Runs(
            np.zeros(shape[:2], np.int64),
            np.zeros(shape),
            np.zeros(shape),
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
        )
    return Runs(runs.number, *(np.concatenate([part, np.zeros_like(part)], axis=2) for part in runs[1:]))


@kept_compiled
def _add_way(
    runs: Runs,
    way: int,
    by_layer: Floats,
    capacity: Floats,
    boundary_s: float,
    step_s: float,
    n_microbatches: int,
    limit_s: float,
) -> None:
    """Add a way to every run of layers that it can hold in less than ``limit_s`` a micro-batch.

    Rows of ``by_layer``: time, extra, static, activation and transient bytes, bytes on the host that stay and that
    micro-batches in flight keep, bytes on drives. ``capacity`` is of device, host and drives. A stage with q behind it holds
    min(q + 1, n_microbatches) micro-batches at once.
    """
    n_layers = by_layer.shape[1]
    for first in range(n_layers):
        time_s, extra_s = boundary_s, step_s if first > 0 else 0.0
        static = kept = transient = on_host = kept_on_host = on_drives = 0.0
        for last in range(first, n_layers):
            time_s, extra_s = time_s + by_layer[0, last], extra_s + by_layer[1, last]
            static, kept, transient = static + by_layer[2, last], kept + by_layer[3, last], max(transient, by_layer[4, last])
            on_host, kept_on_host = on_host + by_layer[5, last], kept_on_host + by_layer[6, last]
            on_drives += by_layer[7, last]
            held = min(
                _held(capacity[0] - static - transient, kept, n_microbatches),
                _held(capacity[1] - on_host, kept_on_host, n_microbatches),
            )
            later = n_layers if held >= n_microbatches else held - 1
            # Longer runs take more time and more of everything.
            if time_s >= limit_s or later < 0 or on_drives > capacity[2]:
                break
            if last - first + 1 < n_layers:
                _insert(runs, first, last, time_s, extra_s, later, way)


@kept_compiled
def _held(room: float, each: float, n_microbatches: int) -> int:
    """Micro-batches that fit, as far as there are any."""
    if room < 0.0:
        return -1
    return n_microbatches if each * n_microbatches <= room else int(room / each)


@kept_compiled
def _insert(runs: Runs, first: int, last: int, time_s: float, extra_s: float, later: int, way: int) -> None:
    """Add a way to a run of layers unless another is as good in all; and drop those that it beats."""
    number = runs.number[first, last]
    times, extras, laters = runs.time_s[first, last], runs.extra_s[first, last], runs.later[first, last]
    for other in range(number):
        if times[other] <= time_s and extras[other] <= extra_s and laters[other] >= later:
            return
    kept = 0
    for other in range(number):
        if not (time_s <= times[other] and extra_s <= extras[other] and later >= laters[other]):
            times[kept], extras[kept], laters[kept] = times[other], extras[other], laters[other]
            runs.way[first, last, kept] = runs.way[first, last, other]
            kept += 1
    times[kept], extras[kept], laters[kept] = time_s, extra_s, later
    runs.way[first, last, kept] = way
    runs.number[first, last] = kept + 1


MAX_ENTRIES = 8_000_000
"""Entries of a dense table, at most: three arrays of 64 MB."""


def refuse_stagewise(request: TrainingRequest) -> None:
    """Raise WorkloadError where stages of different degrees are asked for and can't be."""
    search = request.search
    if search.stage_degrees is StageDegrees.SAME:
        return
    if search.space is not Space.FREE:
        raise WorkloadError(
            "no launcher runs stages of different degrees", given="search.stage_degrees: any", allowed="with search.space: free"
        )
    if not request.model.is_chain or len(search.optimizers) > 1:
        raise WorkloadError(
            "stages of different degrees are searched for models without branches and one optimizer",
            given={"chain": request.model.is_chain, "optimizers": [*search.optimizers]},
            allowed="a chain of layers, at most one of search.optimizers",
        )
    if TpOverlap.CHUNKED in search.tp_overlap:
        raise WorkloadError(
            "stages that differ do not cut products into chunks", given="search.tp_overlap: chunked", allowed="exposed"
        )
    for name, choice in OF_MESHES.items():
        asked = getattr(search, name)
        if asked and choice.usual not in asked:
            raise WorkloadError(
                choice.unlike_stages.asked,
                given=f"search.{name}: {', '.join(asked)}",
                allowed=f"{choice.usual.value} among them",
            )
    require_whole_cluster(request, "search.stage_degrees")


def best_stagewise(request: TrainingRequest, given: Plan | None, *, stop: Stop, progress: OnProgress) -> Plan:
    """The better of ``given``, whose stages have the same degrees, and the best plan of stages that differ, over the cluster's
    own arrangement of node groups and the others. Nothing is told of the way there."""
    assert given is not None, "equal pipelines are searched first"
    limit_s = min(request.longest_step_s, given.certificate.objective or math.inf)
    best: _Found | None = None
    known, finished = _Known(stop), True
    for arrangement in (Arrangement(), *other_arrangements(request)):
        space = _Space(arranged(request, arrangement), known)
        for count in space.counts:
            if stop():
                break
            found: Partition | None = None
            with unit_of_work() as unit:
                found = space.best(count, below_s=limit_s, stop=stop)
            if unit.was_stopped:
                break
            if found is not None and found.objective_s < limit_s * (1 - RELATIVE_TIE):
                best, limit_s = _Found(arrangement, space, count, found), found.objective_s
        finished = finished and not stop()
    bound_s = min(given.certificate.bound or 0.0, limit_s) if given.certificate.bound or given.is_decided else 0.0
    if best is None and not given.feasible:
        return given if finished or not given.is_decided else still_open(given)
    if given.certificate.objective is None and given.is_decided:
        bound_s = limit_s
    # Of what was not searched this much is known.
    return _certified(request, given, best, bound_s if finished else min(bound_s, compute_bound_s(request)))


@dataclass(frozen=True, eq=False)
class _Found:
    """The best stages so far: for a number of micro-batches in the space of an arrangement."""

    arrangement: Arrangement
    space: _Space
    count: int
    partition: Partition


def _certified(request: TrainingRequest, given: Plan, best: _Found | None, bound_s: float) -> Plan:
    objective = given.certificate.objective if best is None else best.partition.objective_s
    assert objective is not None
    text = (
        "stages that each have degrees, shardings and memory choices of their own, under 1F1B, on whole nodes or, where "
        f"nothing moves to hosts, parts of a node{_of_groups(request)}"
    )
    certificate = widened(given.certificate, objective, bound_s, by=text)
    if best is None:
        return replace(given, certificate=certificate)
    arrangement = best.arrangement
    ways, spans = best.space.chosen(best.count, best.partition)
    stats = replace(given.search, evaluated=given.search.evaluated + len(best.space.counts))
    plan = stagewise_plan(best.space.request, ways, spans, certificate=certificate, stats=stats)
    plan = in_arrangement(replace(plan, notes=(*plan.notes, *arrangement.notes)), arrangement)
    return instead_of(given, plan, "stages of the same degrees")


def _of_groups(request: TrainingRequest) -> str:
    """Return, in words, the layout of stages on several node groups."""
    search = request.search
    order = "any order" if search.group_order is GroupOrder.ANY else "order"
    several = f", each in one node group, groups after one another in {order}" if len(request.cluster.groups) > 1 else ""
    idle = f", any number of devices idle in each node of {', '.join(search.idle_groups)}" if search.idle_groups else ""
    return several + idle


class _Known:
    """Ways to run a stage, by what they depend on: the nodes, the stage's devices and the links at its borders."""

    def __init__(self, stop: Stop):
        self._stop = stop
        self._ways: dict[tuple[NodeType, int, tuple[Borders, ...]], dict[int, list[Way]]] = {}

    def ways(self, sized: TrainingRequest, size: int, borders: tuple[Borders, ...]) -> dict[int, list[Way]]:
        """By the number of micro-batches; those of a request that is not searched to the end are none."""
        key = (sized.cluster.groups[0].node, size, borders)
        if key not in self._ways:
            found = stage_ways(sized, borders, stop=self._stop)
            if found is None:
                return {}
            self._ways[key] = found
        return self._ways[key]


@dataclass(frozen=True, eq=False)
class _Column:
    """Stages of a size in one place of a group, with ways to run them for each number of micro-batches."""

    group: int
    size: int
    place: StageBegin
    ways: dict[int, list[Way]]
    border: int


class _Space:
    """Stages that differ on one arrangement of the node groups."""

    def __init__(self, request: TrainingRequest, known: _Known):
        self.request = request
        self._columns: list[_Column] = []
        cluster = request.cluster
        for index, group in enumerate(cluster.groups):
            for size in stage_sizes(request, group):
                borders = every_border(cluster, group)
                ways = known.ways(sized_request(request, group, size, pp=2), size, borders)
                if any(ways.values()):
                    self._columns += [
                        _Column(index, size, place, ways, borders.index(place.borders))
                        for place in places(cluster, index, size)
                    ]
        self.counts = sorted({count for column in self._columns for count in column.ways})

    def best(self, count: int, *, below_s: float, stop: Stop) -> Partition | None:
        """The best stages for a number of micro-batches, at least two of them, that take less than ``below_s``; configs are
        ways. Raises SearchStopped."""
        columns = [column for column in self._columns if column.ways.get(count)]
        listed = [
            unbeaten_runs(column.ways[count], column.border, n_microbatches=count, below_s=below_s, stop=stop)
            for column in columns
        ]
        heed(stop)
        most = max((int(runs.number.max()) for runs in listed), default=0)
        if not most:
            return None
        n_layers = len(self.request.model.layers)
        shape = (n_layers, n_layers, len(listed), most)
        if math.prod(shape) > MAX_ENTRIES:
            raise WorkloadError(
                "too many ways to run a stage to search all of them",
                given=f"{most} ways of a run of layers, {len(listed)} sizes and places, {n_layers} layers",
                allowed=f"{MAX_ENTRIES:,} entries of layers x layers x sizes and places x ways",
                remedy="restrict dp, tp, cp, ep, recompute, zero_stages or microbatch in 'search'",
            )
        times, later, extra = np.full(shape, np.inf), np.full(shape, -1, np.int64), np.zeros(shape)
        for place, runs in enumerate(listed):
            width = min(most, runs.time_s.shape[2])
            used = np.arange(width) < runs.number[:, :, None]
            for dense, part in ((times, runs.time_s), (later, runs.later), (extra, runs.extra_s)):
                dense[:, :, place, :width][used] = part[:, :, :width][used]
        found = partition(
            times,
            later,
            submesh_devices=np.array([column.size for column in columns]),
            devices_before=np.array([(column.place.fewest, column.place.most) for column in columns]),
            n_devices=self.request.cluster.n_devices,
            n_microbatches=count,
            extra_s=extra,
            stage_counts=self.request.search.pp or None,
            below_s=below_s,
        )
        if found is None:
            return None
        stages = tuple(
            replace(
                stage,
                submesh=self._columns.index(columns[stage.submesh]),
                config=int(listed[stage.submesh].way[stage.first, stage.last, stage.config]),
            )
            for stage in found.stages
        )
        return replace(found, stages=stages)

    def chosen(self, count: int, found: Partition) -> tuple[list[StageWay], tuple[StageSpan, ...]]:
        """Return the way in which each stage of a partition runs."""
        ways, spans = list[StageWay](), list[StageSpan]()
        for stage in found.stages:
            column = self._columns[stage.submesh]
            way, group = column.ways[count][stage.config], self.request.cluster.groups[column.group]
            ways.append(StageWay(way.costs, way.candidate, way.sharding, group, column.size, column.place.borders))
            spans.append(StageSpan(stage.first, stage.last, way.mode))
        return ways, tuple(spans)
