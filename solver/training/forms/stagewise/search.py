"""Stages that differ in everything: degrees, micro-batch, sharding, recompute and place of state, each stage its own.

All stages see the same number of micro-batches; a stage with dp replicas cuts each into dp equal parts. The pipeline goes
through the node groups in order, each stage inside one of them. For a number of micro-batches everything that a stage may be is
a column of a dense table [run of layers, devices and place, way], which `solver.stages.partition` solves exactly. Candidates
are in it with the least that their ways take, until the best partition could use them: then their ways are.
Stages are parts of a node that fill it, or whole nodes, so that they always fill their group; each pays for its own sends,
over the network whoever its neighbour is, and from group to group over the slower one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodels.cluster.cluster import NodeGroup, NodeType
from meshwright.costmodels.compiling import kept_compiled
from meshwright.costmodels.errors import WorkloadError
from meshwright.solver.answer.arrangement import Arrangement, arranged, in_arrangement
from meshwright.solver.answer.layouts import Uniform
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import OnProgress, Stop, heed, unit_of_work
from meshwright.solver.problem.carried_choices import OF_MESHES
from meshwright.solver.problem.choices import GroupOrder, Space, StageDegrees, TpOverlap
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.stages import Partition, partition
from meshwright.solver.training.costs.candidate_tables import TrainingCosts, pinned_layers
from meshwright.solver.training.costs.evaluate import StageSpan, compute_bound_s
from meshwright.solver.training.forms.stagewise.record import StageWay, stagewise_plan
from meshwright.solver.training.forms.stagewise.stage_sizes import (
    Borders,
    Lines,
    StageBegin,
    StageWays,
    Unopened,
    every_border,
    places,
    sized_request,
    stage_sizes,
    unlike_layers,
)
from meshwright.solver.training.forms.uniform.device_orders import other_arrangements
from meshwright.solver.training.report.device_counts import require_whole_cluster
from meshwright.solver.training.report.plan_report import instead_of, still_open, widened
from meshwright.solver.training.search.best_first import RELATIVE_TIE
from meshwright.solver.training.search.bounds import SharedFigures

# Runs of layers as stages: for a size and place of stages, every way to run each run of layers that no other beats there.

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FIRST_ROOM = 8
"""Ways of a run of layers that there is room for at first; doubled where there are more."""
AT_ONCE = 256
"""Lines that are added between two looks at the rule that stops: about a millisecond."""


class Runs(NamedTuple):
    """``[run, :number[run]]`` are the ways of a run of layers: time, extra, later stages that memory allows under 1F1B, and
    which line it is."""

    number: Ints
    time_s: Floats
    extra_s: Floats
    later: Ints
    line: Ints


@dataclass(frozen=True, eq=False)
class Layers:
    """The runs of a model's layers: runs of the same blocks are one, but for those that begin with the model's first layer."""

    unlike: Ints
    """[layer] which of `unlike_layers` it is like."""
    run_of: Ints
    """[first, last] run, as far as there is one."""

    @classmethod
    def of(cls, model: ModelGraph) -> Layers:
        """Return those of a model."""
        names, n_layers = model.layers, len(model.layers)
        stand_for = unlike_layers(model)
        like = {names[layer]: place for place, layer in enumerate(stand_for)}
        known = dict[tuple[bool, tuple[str, ...]], int]()
        run_of = np.zeros((n_layers, n_layers), np.int64)
        for first, last in zip(*np.triu_indices(n_layers), strict=True):
            run_of[first, last] = known.setdefault((bool(first), names[first : last + 1]), len(known))
        return cls(np.array([0, *(like[name] for name in names[1:])], np.int64), run_of)


def unbeaten_runs(lines: Lines, border: int, layers: Layers, *, n_microbatches: int, below_s: float, stop: Stop) -> Runs:
    """For every run of layers the lines that no other equals or beats in time, extra and memory, between one of the borders;
    those left out whose micro-batches take ``below_s`` by themselves, and all of the whole model. Raises SearchStopped."""
    n_lines, n_runs = len(lines.step_s), int(layers.run_of.max()) + 1
    shape = (n_runs, FIRST_ROOM)
    runs = Runs(
        np.zeros(n_runs, np.int64), np.zeros(shape), np.zeros(shape), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    )
    begin = 0
    while begin < n_lines:
        heed(stop)
        begin = _add_lines(
            runs,
            begin,
            min(n_lines, begin + AT_ONCE),
            lines.figures,
            lines.capacity,
            lines.boundary_s[:, border],
            lines.step_s,
            layers.unlike,
            layers.run_of,
            n_microbatches,
            below_s / n_microbatches,
        )
        if int(runs.number.max()) == runs.time_s.shape[1]:
            runs = Runs(runs.number, *(np.concatenate([part, np.zeros_like(part)], axis=1) for part in runs[1:]))
    return runs


@kept_compiled
def _add_lines(
    runs: Runs,
    begin: int,
    end: int,
    figures: Floats,
    capacity: Floats,
    boundary_s: Floats,
    step_s: Floats,
    unlike: Ints,
    run_of: Ints,
    n_microbatches: int,
    limit_s: float,
) -> int:
    """Add lines to every run of layers that they can hold in less than ``limit_s`` a micro-batch; return the first that was not
    added, for there is no room left for another in some run. A stage with q behind it holds min(q + 1, n_microbatches)
    micro-batches at once."""
    n_layers, done = len(unlike), np.full(len(runs.number), -1, np.int64)
    for line in range(begin, end):
        by_layer, most = figures[line], 0
        for first in range(n_layers):
            time_s, extra_s = boundary_s[line], step_s[line] if first > 0 else 0.0
            static = kept = transient = on_host = kept_on_host = on_drives = 0.0
            for last in range(first, n_layers):
                of = unlike[last]
                time_s, extra_s = time_s + by_layer[0, of], extra_s + by_layer[1, of]
                static, kept, transient = static + by_layer[2, of], kept + by_layer[3, of], max(transient, by_layer[4, of])
                on_host, kept_on_host = on_host + by_layer[5, of], kept_on_host + by_layer[6, of]
                on_drives += by_layer[7, of]
                run = run_of[first, last]
                if done[run] == line:
                    continue
                held = min(
                    _held(capacity[line, 0] - static - transient, kept, n_microbatches),
                    _held(capacity[line, 1] - on_host, kept_on_host, n_microbatches),
                )
                later = n_layers if held >= n_microbatches else held - 1
                # Longer runs take more time and more of everything.
                if time_s >= limit_s or later < 0 or on_drives > capacity[line, 2]:
                    break
                done[run] = line
                if last - first + 1 < n_layers:
                    _insert(runs, run, time_s, extra_s, later, line)
                    most = max(most, runs.number[run])
        if most == runs.time_s.shape[1]:
            return line + 1
    return end


@kept_compiled
def _held(room: float, each: float, n_microbatches: int) -> int:
    """Micro-batches that fit, as far as there are any."""
    if room < 0.0:
        return -1
    return n_microbatches if each * n_microbatches <= room else int(room / each)


@kept_compiled
def _insert(runs: Runs, run: int, time_s: float, extra_s: float, later: int, line: int) -> None:
    """Add a line to a run of layers unless another is as good in all; and drop those that it beats.

    An extra counts with the time of its own stage (`solver.stages.longest.objective_s`): what takes less time may have as much
    more extra.
    """
    number = runs.number[run]
    times, extras, laters, lines = runs.time_s[run], runs.extra_s[run], runs.later[run], runs.line[run]
    for other in range(number):
        if times[other] <= time_s and times[other] + extras[other] <= time_s + extra_s and laters[other] >= later:
            return
    kept = 0
    for other in range(number):
        if not (time_s <= times[other] and time_s + extra_s <= times[other] + extras[other] and later >= laters[other]):
            times[kept], extras[kept], laters[kept], lines[kept] = times[other], extras[other], laters[other], lines[other]
            kept += 1
    times[kept], extras[kept], laters[kept], lines[kept] = time_s, extra_s, later, line
    runs.number[run] = kept + 1


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


class StagewiseSearch:
    """Searches stages that differ, over the cluster's own arrangement of node groups and the others. A search that is begun
    again looks only for what beats the best so far, where it has not proven that there is nothing."""

    def __init__(self, request: TrainingRequest):
        self._request, self._known = request, _Known()
        self._best = _Best(request.longest_step_s)
        self._done = set[tuple[int, int]]()

    def __call__(self, given: Plan | None, *, stop: Stop, progress: OnProgress) -> Plan:
        """The better of ``given``, whose stages have the same degrees, and the best plan of stages that differ. Nothing is told
        of the way there."""
        assert given is not None, "equal pipelines are searched first"
        request, best, open_s = self._request, self._best, list[float]()
        best.heed(given)
        for place, arrangement in enumerate((Arrangement(), *other_arrangements(request))):
            space = _Space(arranged(request, arrangement), arrangement, self._known)
            for count in _nearest_first(space.counts, given):
                if (place, count) in self._done:
                    continue
                # Of what was not searched this much is known.
                bound_s = compute_bound_s(request)
                with unit_of_work() as unit:
                    heed(stop)
                    for known_s in space.search(count, best, stop=stop):
                        bound_s = known_s
                if unit.was_stopped:
                    open_s.append(bound_s)
                else:
                    self._done.add((place, count))
        return _better(request, given, best, open_s)


def _better(request: TrainingRequest, given: Plan, best: _Best, open_s: list[float]) -> Plan:
    """The better of two plans, with what was left open: bounds of plans that may be better than both."""
    bound_s = min(given.certificate.bound or 0.0, best.limit_s) if given.certificate.bound or given.is_decided else 0.0
    if best.found is None and not given.feasible:
        return given if not open_s or not given.is_decided else still_open(given)
    if given.certificate.objective is None and given.is_decided:
        bound_s = best.limit_s
    return _certified(request, given, best.found, min([bound_s, *open_s]))


def _nearest_first(counts: Iterable[int], given: Plan) -> list[int]:
    """Numbers of micro-batches, those most like the given plan's first: what is best is often near it."""
    if not isinstance(given.layout, Uniform):
        return sorted(counts)
    like = given.layout.pipelines.microbatch.count
    return sorted(counts, key=lambda count: (abs(math.log(count / like)), count))


@dataclass(frozen=True, eq=False)
class _Found:
    """Stages for a number of micro-batches in the space of an arrangement."""

    space: _Space
    count: int
    objective_s: float
    ways: tuple[StageWay, ...]
    spans: tuple[StageSpan, ...]


@dataclass
class _Best:
    """The best stages so far, and the seconds that better ones take less than."""

    limit_s: float
    found: _Found | None = None

    def heed(self, given: Plan) -> None:
        """Look from now on for what is better than this plan too."""
        given_s = given.certificate.objective or math.inf
        if self.found is not None and given_s * (1 - RELATIVE_TIE) <= self.found.objective_s:
            self.found = None
        self.limit_s = min(self.limit_s, given_s)

    @property
    def below_s(self) -> float:
        """Seconds from which a plan is not better."""
        return self.limit_s * (1 - RELATIVE_TIE)


def _certified(request: TrainingRequest, given: Plan, best: _Found | None, bound_s: float) -> Plan:
    objective = given.certificate.objective if best is None else best.objective_s
    assert objective is not None
    text = (
        "stages that each have degrees, shardings and memory choices of their own, under 1F1B, on whole nodes or, where "
        f"nothing moves to hosts, parts of a node{_of_groups(request)}"
    )
    certificate = widened(given.certificate, objective, bound_s, by=text)
    if best is None:
        return replace(given, certificate=certificate)
    arrangement = best.space.arrangement
    stats = replace(given.search, evaluated=given.search.evaluated + len(best.space.counts))
    plan = stagewise_plan(best.space.request, best.ways, best.spans, certificate=certificate, stats=stats)
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

    def __init__(self) -> None:
        self._ways: dict[tuple[NodeType, int, tuple[Borders, ...]], StageWays] = {}
        self._shared: SharedFigures | None = None

    def ways(self, request: TrainingRequest, group: NodeGroup, size: int) -> StageWays:
        """Return those of stages of a size in a group."""
        borders = every_border(request.cluster, group)
        key = (group.node, size, borders)
        if key not in self._ways:
            sized = sized_request(request, group, size, pp=2)
            # What blocks take depends on their setting, not on how many devices the stage has.
            costs = TrainingCosts(sized) if self._shared is None else self._shared.costs.on(sized.cluster)
            self._shared = SharedFigures(costs) if self._shared is None else replace(self._shared, costs=costs)
            self._ways[key] = StageWays(self._shared, borders)
        return self._ways[key]


@dataclass(frozen=True, eq=False)
class _Column:
    """Stages of a size in one place of a group, with ways to run them."""

    group: int
    size: int
    place: StageBegin
    ways: StageWays
    border: int


@dataclass(frozen=True, eq=False)
class _Listed:
    """Candidates with their lines after one another, and the runs of layers that these hold."""

    candidates: list[Unopened]
    n_opened: int
    first_line: Ints
    runs: Runs

    def at(self, line: int) -> tuple[Unopened, int]:
        """Return the candidates that a line is of, and which of their lines it is."""
        owner = int(np.searchsorted(self.first_line, line, side="right")) - 1
        return self.candidates[owner], line - int(self.first_line[owner])

    def of_run(self, run: int) -> list[Unopened]:
        """Return the candidates that are not opened among the ways of a run."""
        lines = self.runs.line[run, : self.runs.number[run]].tolist()
        return list(dict.fromkeys(each for each, _ in map(self.at, lines) if each.ways is None))


class _Space:
    """Stages that differ on one arrangement of the node groups."""

    def __init__(self, request: TrainingRequest, arrangement: Arrangement, known: _Known):
        self.request, self.arrangement = request, arrangement
        cluster, self._layers = request.cluster, Layers.of(request.model)
        self._pinned = pinned_layers(request)
        self._columns = [
            _Column(index, size, place, ways, every_border(cluster, group).index(place.borders))
            for index, group in enumerate(cluster.groups)
            for size in stage_sizes(request, group)
            for ways in (known.ways(request, group, size),)
            for place in places(cluster, index, size)
        ]
        self.counts = sorted({count for column in self._columns for count in column.ways.counts})

    def search(self, count: int, best: _Best, *, stop: Stop) -> Iterator[float]:
        """Look for better stages for a number of micro-batches, at least two of them, and yield rising bounds of all that there
        are, until there are none. Raises SearchStopped.

        The bound is the best partition where candidates that are not opened take the least of their ways. Those that its
        stages could be are opened then, and the best partition of opened ways is a plan.
        """
        columns = [column for column in self._columns if column.ways.candidates(count, stop)]
        opened, everything = dict[tuple[StageWays, int], _Listed](), dict[tuple[StageWays, int], _Listed]()
        while (bound := self._least(columns, count, everything, False, best.below_s, stop)) is not None:
            yield bound.objective_s
            unopened = dict[Unopened, StageWays]()
            for stage in bound.stages:
                column, run = columns[stage.submesh], int(self._layers.run_of[stage.first, stage.last])
                for each in everything[column.ways, column.border].of_run(run):
                    unopened[each] = column.ways
            for each, ways in unopened.items():
                ways.open(each, stop)
            found = self._least(columns, count, opened, True, best.below_s, stop)
            if found is not None:
                best.limit_s, best.found = found.objective_s, self._chosen(columns, count, opened, found)

    def _least(
        self,
        columns: list[_Column],
        count: int,
        known: dict[tuple[StageWays, int], _Listed],
        only_opened: bool,
        below_s: float,
        stop: Stop,
    ) -> Partition | None:
        """The best stages that take less than ``below_s``, of opened candidates alone or of all; configs are ways of runs."""
        for column in columns:
            self._list(column, count, known, only_opened, below_s, stop)
        heed(stop)
        listed = [known[column.ways, column.border].runs for column in columns]
        most = max((int(runs.number.max()) for runs in listed), default=0)
        if not most:
            return None
        shape = (len(listed[0].number), len(listed), most)
        if math.prod(shape) > MAX_ENTRIES:
            raise WorkloadError(
                "too many ways to run a stage to search all of them",
                given=f"{most} ways of a run of layers, {len(listed)} sizes and places, {shape[0]} runs of unlike layers",
                allowed=f"{MAX_ENTRIES:,} entries of runs x sizes and places x ways",
                remedy="restrict dp, tp, cp, ep, recompute, zero_stages or microbatch in 'search'",
            )
        times, later, extra = np.full(shape, np.inf), np.full(shape, -1, np.int64), np.zeros(shape)
        for place, runs in enumerate(listed):
            width = min(most, runs.time_s.shape[1])
            used = np.arange(width) < runs.number[:, None]
            for dense, part in ((times, runs.time_s), (later, runs.later), (extra, runs.extra_s)):
                dense[:, place, :width][used] = part[:, :width][used]
        return partition(
            times,
            later,
            submesh_devices=np.array([column.size for column in columns]),
            devices_before=np.array([(column.place.fewest, column.place.most) for column in columns]),
            n_devices=self.request.cluster.n_devices,
            n_microbatches=count,
            extra_s=extra,
            row_of=self._layers.run_of,
            stage_counts=self.request.search.pp or None,
            below_s=below_s,
            pinned=self._pinned,
        )

    def _list(
        self,
        column: _Column,
        count: int,
        known: dict[tuple[StageWays, int], _Listed],
        only_opened: bool,
        below_s: float,
        stop: Stop,
    ) -> None:
        """Know the runs of a column's candidates as far as they are opened now."""
        every, key = column.ways.candidates(count, stop), (column.ways, column.border)
        n_opened = sum(each.ways is not None for each in every)
        if key in known and known[key].n_opened == n_opened:
            return
        candidates = [each for each in every if each.ways is not None] if only_opened else every
        lines = Lines.joined([every[0].lines.only([]), *(each.lines for each in candidates)])
        runs = unbeaten_runs(lines, column.border, self._layers, n_microbatches=count, below_s=below_s, stop=stop)
        first_line = np.cumsum([0, *(len(each.lines.step_s) for each in candidates)])
        known[key] = _Listed(candidates, n_opened, first_line, runs)

    def _chosen(
        self, columns: list[_Column], count: int, opened: dict[tuple[StageWays, int], _Listed], found: Partition
    ) -> _Found:
        """Return the way in which each stage of a partition runs."""
        ways, spans = list[StageWay](), list[StageSpan]()
        for stage in found.stages:
            column, run = columns[stage.submesh], self._layers.run_of[stage.first, stage.last]
            listed, group = opened[column.ways, column.border], self.request.cluster.groups[column.group]
            candidates, line = listed.at(int(listed.runs.line[run, stage.config]))
            assert candidates.ways is not None, "found among opened candidates"
            way = candidates.ways[line]
            ways.append(StageWay(way.costs, way.candidate, way.sharding, group, column.size, column.place.borders))
            spans.append(StageSpan(stage.first, stage.last, way.mode))
        return _Found(self, count, found.objective_s, tuple(ways), tuple(spans))
