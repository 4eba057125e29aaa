"""How many devices stages of different degrees may have, where on the cluster they lie, and every way to run one of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from meshwright.costmodels.cluster.cluster import Cluster, GroupTopology, NodeGroup, group_topology, part_of_node
from meshwright.solver.answer.stage import DeviceRange
from meshwright.solver.control import SearchStopped, Stop, heed
from meshwright.solver.problem.carried_choices import OF_MESHES
from meshwright.solver.problem.choices import BatchShares, GroupOrder, Recompute, StageDegrees
from meshwright.solver.problem.declared.constraints import FixedStage
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.problem.search import Search
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.costs.evaluate import FloatArray, Sharding, StageTable
from meshwright.solver.training.search.bounds import SharedFigures
from meshwright.solver.training.search.family_view import FamilyView
from meshwright.solver.training.space.candidates import Candidate, CandidateFamily, families
from meshwright.solver.training.space.schedules import PLAIN
from meshwright.solver.training.space.state_places import StatePlace

# Numbers of devices that stages of different degrees may have, and the cluster as stages of one size see it.

MOST_IN_ANY_PARTS = 24
"""Devices of a node that parts of any size which divides them always fill: no stages of such sizes, however many, together
as large as two of these nodes leave every choice of them short of a node (enumerated for every size up to this)."""


def stage_sizes(request: TrainingRequest, group: NodeGroup) -> tuple[int, ...]:
    """Divisors of a node's devices (of nodes of more than `MOST_IN_ANY_PARTS`, powers of two), and any number of whole nodes of
    a group, so that two stages fit the cluster; whole nodes alone where state or activations may leave the device, since
    devices of a node share its host.

    Any such stages that add up to the group fill it: none need be cut by the border of a node (`laid_out`).
    """
    whole = group.node.devices_per_node
    inside = [part for part in range(1, whole) if whole % part == 0]
    if whole > MOST_IN_ANY_PARTS:
        inside = [part for part in inside if part.bit_count() == 1]
    inside = [] if uses_hosts(request.search) else inside
    nodes = [whole * count for count in range(1, group.nodes + 1)]
    return tuple(size for size in (*inside, *nodes) if size < request.cluster.n_devices)


def uses_hosts(search: Search) -> bool:
    """Return True if a plan of the search may move anything to hosts or their drives."""
    shares = (search.offload_optimizer, search.offload_activations, search.offload_weights, search.offload_gradients)
    return any(share > 0 for allowed in shares for share in allowed)


def sized_request(request: TrainingRequest, group: NodeGroup, size: int, *, pp: int) -> TrainingRequest:
    """The request on ``pp`` stages of so many devices of a group each, none sharing a node with another: what one stage sees
    of the cluster, with its share of the node's network, wherever in the pipeline it is."""
    whole = group.node.devices_per_node
    used = min(size, whole)
    usual: dict[str, Any] = {name: (choice.usual,) for name, choice in OF_MESHES.items()}
    search = replace(
        request.search,
        pp=(pp,),
        stage_degrees=StageDegrees.SAME,
        batch_shares=BatchShares.EVEN,
        group_order=GroupOrder.GIVEN,
        idle_groups=(),
        constraints=tuple(each for each in request.search.constraints if not isinstance(each, FixedStage)),
        **usual,
    )
    nodes = replace(group, node=part_of_node(group.node, used), nodes=pp * size // used)
    return replace(request, cluster=replace(request.cluster, groups=(nodes,), nodes_per_leaf=None), search=search)


# Where on the cluster the stages lie, and every way to run one of them.

Borders = tuple[GroupTopology | None, GroupTopology | None]
"""Links of a stage to the one before and the one behind it; None for the network of its own nodes."""


@dataclass(frozen=True, slots=True)
class StageBegin:
    """Where stages of a size may begin: behind the ``fewest`` to the ``most`` devices of earlier stages; and their borders."""

    fewest: int
    most: int
    borders: Borders


def places(cluster: Cluster, index: int, size: int) -> tuple[StageBegin, ...]:
    """Where stages of a size may lie in one of the cluster's groups, through which the pipeline goes in order.

    The first stage in a group receives from the one before it and the last sends to the one behind it, over the slower network.
    """
    group = cluster.groups[index]
    start = sum(each.n_devices for each in cluster.groups[:index])
    end = start + group.n_devices - size
    found: list[StageBegin] = []
    for fewest, most in ((start, start), (start + 1, end - 1), (max(start + 1, end), end)):
        if fewest > most:
            continue
        before = cluster.groups[index - 1] if index and fewest == start else group
        behind = cluster.groups[index + 1] if fewest == end and index + 1 < len(cluster.groups) else group
        borders = stage_links(
            cluster,
            group,
            before=before if fewest else None,
            behind=behind if end + size < cluster.n_devices or fewest < end else None,
        )
        if found and found[-1].borders == borders:
            found[-1] = replace(found[-1], most=most)
        else:
            found.append(StageBegin(fewest, most, borders))
    return tuple(found)


def stage_links(cluster: Cluster, group: NodeGroup, *, before: NodeGroup | None, behind: NodeGroup | None) -> Borders:
    """Links of a stage of a group to its neighbours, in other groups or its own; at an end of the pipeline (None) the link of
    the other border stands for both."""
    first, last = (None if other is None else _slower_link(cluster, group, other) for other in (before, behind))
    return (last, last) if before is None else (first, first) if behind is None else (first, last)


def every_border(cluster: Cluster, group: NodeGroup) -> tuple[Borders, ...]:
    """Every borders that a stage of a group can have, whatever the order of the groups; the same tuple for every order."""
    slower = {link for other in cluster.groups if (link := _slower_link(cluster, group, other)) is not None}
    links = (None, *sorted(slower, key=lambda link: (link.inter_bytes_per_s, link.inter_latency_s, link.calibration)))
    return tuple((before, behind) for before in links for behind in links)


def _slower_link(cluster: Cluster, own: NodeGroup, other: NodeGroup) -> GroupTopology | None:
    """A device's share of another group's network where that is slower than of its own group's; else None."""
    if other == own:
        return None
    theirs, ours = _network_link(cluster, other), _network_link(cluster, own)
    slower = (theirs.inter_bytes_per_s, -theirs.inter_latency_s) < (ours.inter_bytes_per_s, -ours.inter_latency_s)
    return theirs if slower else None


def _network_link(cluster: Cluster, group: NodeGroup) -> GroupTopology:
    """Return the topology of the network of a group's device, beside all others of its node."""
    single = replace(group, node=part_of_node(group.node, 1), nodes=2)
    return group_topology(replace(cluster, groups=(single,), nodes_per_leaf=None), n=2, stride=1)


def laid_out(cluster: Cluster, stages: Sequence[tuple[NodeGroup, int]]) -> tuple[DeviceRange, ...]:
    """Ranks of stages, each of so many devices of a group, in order of the stages: in each group whole nodes first, then node
    by node the largest that fill it, of equal ones the earlier."""
    ranges: dict[int, DeviceRange] = {}
    first = 0
    for group in cluster.groups:
        here = sorted((-size, stage) for stage, (of, size) in enumerate(stages) if of.name == group.name)
        place = first
        for stage in _filling([(stage, -size) for size, stage in here], group.node.devices_per_node):
            ranges[stage] = DeviceRange(place, stages[stage][1])
            place += stages[stage][1]
        first += group.n_devices
    return tuple(ranges[stage] for stage in range(len(stages)))


def _filling(sized: Sequence[tuple[int, int]], whole: int) -> list[int]:
    """Stages with their sizes, largest first, in an order in which those smaller than a node fill one after another."""
    order = [stage for stage, size in sized if size >= whole]
    left = [(stage, size) for stage, size in sized if size < whole]
    while left:
        chosen = _exactly(left, whole) or left
        order += [stage for stage, _ in chosen]
        left = [each for each in left if each not in chosen]
    return order


def _exactly(sized: Sequence[tuple[int, int]], total: int) -> list[tuple[int, int]] | None:
    """The first of the stages, larger ones before smaller, that together have so many devices; None where none do."""
    if total == 0:
        return []
    tried = set[int]()
    for place, (stage, size) in enumerate(sized):
        if size > total or size in tried:
            continue
        tried.add(size)
        rest = _exactly(sized[place + 1 :], total - size)
        if rest is not None:
            return [(stage, size), *rest]
    return None


# Ways to run a stage of so many devices of a node group: every candidate, sharding and recompute mode, opened as far as asked.


@dataclass(frozen=True, eq=False)
class Way:
    """One way to run a stage, under one recompute mode; ``boundary_s`` is what a micro-batch's sends take between each of the
    borders that `StageWays` was asked for."""

    costs: TrainingCosts
    candidate: Candidate
    sharding: Sharding
    mode: Recompute
    table: StageTable
    boundary_s: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Lines:
    """What ways to run a stage take, a line each.

    figures      [line, figure, layer] of layers that stand for all (`unlike_layers`): time, extra, static, activation and
                 transient bytes, bytes on the host that stay and that micro-batches in flight keep, bytes on drives
    capacity     [line, 3] bytes that fit device, host and drives
    boundary_s   [line, borders] sends of a micro-batch
    step_s       [line] what a step adds to stages after the first
    """

    figures: FloatArray
    capacity: FloatArray
    boundary_s: FloatArray
    step_s: FloatArray

    @classmethod
    def joined(cls, parts: Sequence[Lines]) -> Lines:
        """Lines of several, after one another."""
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))

    def unbeaten(self) -> list[int]:
        """Lines that no other beats or equals in everything of which less is better; of equal ones the first."""
        n_lines = len(self.step_s)
        costs = np.column_stack([self.figures.reshape(n_lines, -1), self.boundary_s, self.step_s, -self.capacity])
        kept: list[int] = []
        for index in np.lexsort((np.arange(n_lines), costs.sum(axis=1))):
            if not kept or not (costs[kept] <= costs[index]).all(axis=1).any():
                kept.append(int(index))
        return sorted(kept)

    def only(self, kept: Sequence[int]) -> Lines:
        """Some of the lines."""
        return Lines(*(getattr(self, each.name)[kept] for each in fields(self)))


@dataclass(eq=False)
class Unopened:
    """Candidates of a family in one place of state, by lines that none of their ways is below; their ways once opened."""

    family: CandidateFamily
    place: StatePlace
    lines: Lines
    ways: list[Way] | None = None


class StageWays:
    """Ways to run stages of one size, in candidates that are opened one by one.

    Figures are of the costs of a `sized_request`. Candidates that are not opened take of each block that is not the main one
    the least of each figure over its choices: most ways differ in blocks that a run of layers does not hold.
    """

    def __init__(self, shared: SharedFigures, borders: Sequence[Borders]):
        self._shared, self._costs, self._borders = shared, shared.costs, borders
        self._layers = unlike_layers(self._costs.model)
        self._families: dict[int, list[CandidateFamily]] = {}
        for family in families(self._costs.request):
            if PLAIN in family.pipelinings:
                plain = replace(family, pipelinings=(PLAIN,))
                self._families.setdefault(family.n_microbatches, []).append(plain)
        self._known: dict[int, list[Unopened]] = {}

    @property
    def counts(self) -> Collection[int]:
        """Numbers of micro-batches."""
        return self._families

    def candidates(self, count: int, stop: Stop) -> list[Unopened]:
        """Candidates of a number of micro-batches. Raises SearchStopped."""
        if count not in self._known:
            found: list[Unopened] = []
            with self._costs.stopped_by(stop) as unit:
                for family in self._families.get(count, ()):
                    heed(stop)
                    found += self._of_family(family)
            if unit.was_stopped:
                raise SearchStopped
            self._known[count] = found
        return self._known[count]

    def _of_family(self, family: CandidateFamily) -> Iterator[Unopened]:
        view = FamilyView(self._shared, family)
        if not view.choices.rows:
            return
        of_layer = view.choices.by_main
        boundary_s = [_boundary_s(self._costs, view.first, each) for each in self._borders]
        for place in family.places:
            rows = view.rows(place).with_least(view.choices.of_row)
            by_mode = (rows.time_s, rows.kept_bytes, rows.transient_bytes)
            time_s, kept, transient = (figures[0][:, of_layer[:, self._layers]] for figures in by_mode)
            static, extra_s, bucket_s = (figures[0] for figures in (rows.static_bytes, rows.extra_s, rows.first_bucket_s))
            once_s = extra_s[of_layer[:, self._layers]]
            once_s[:, 0] += bucket_s[of_layer[:, 0]]
            step_s = bucket_s[of_layer[:, 1:-1] if of_layer.shape[1] > 2 else of_layer].max(axis=1)
            nothing = np.zeros_like(time_s)
            on_device = (time_s, nothing + once_s, nothing + static[of_layer[:, self._layers]], kept, transient)
            figures = np.stack([*on_device, nothing, nothing, nothing], axis=2)
            n_lines = figures.shape[0] * figures.shape[1]
            lines = Lines(
                figures.reshape(n_lines, *figures.shape[2:]),
                np.tile([max(0.0, float(rows.capacity_bytes[0])), np.inf, np.inf], (n_lines, 1)),
                np.tile(boundary_s, (n_lines, 1)),
                np.tile(step_s, figures.shape[0]),
            )
            yield Unopened(family, place, lines)

    def open(self, candidates: Unopened, stop: Stop) -> None:
        """Put the ways of candidates in the place of what they take at least. Raises SearchStopped."""
        ways: list[Way] = []
        with self._costs.stopped_by(stop) as unit:
            for candidate in replace(candidates.family, places=(candidates.place,)).candidates():
                ways += _of_candidate(self._costs, candidate, self._borders)
        if unit.was_stopped:
            raise SearchStopped
        lines = Lines.joined([_line(way, self._layers) for way in ways])
        kept = lines.unbeaten()
        candidates.ways, candidates.lines = [ways[index] for index in kept], lines.only(kept)


def stage_table(costs: TrainingCosts, candidate: Candidate, sharding: Sharding, borders: Borders) -> StageTable:
    """The table of a stage between these borders."""
    table = costs.table(candidate, costs.stage_kinds(candidate)[0], sharding)
    return table if borders == (None, None) else replace(table, boundary_s=_boundary_s(costs, candidate, borders))


def _boundary_s(costs: TrainingCosts, candidate: Candidate, borders: Borders) -> float:
    kind = costs.stage_kinds(candidate)[0]
    links = tuple(own if link is None else link for link, own in zip(borders, kind.borders, strict=True))
    between = replace(kind, borders=links)
    return max(costs.boundary_s(candidate, between, setting) for setting in costs.settings(candidate, kind))


def _of_candidate(costs: TrainingCosts, candidate: Candidate, borders: Sequence[Borders]) -> Iterator[Way]:
    kinds = costs.stage_kinds(candidate)
    boundary_s = tuple(_boundary_s(costs, candidate, each) for each in borders)
    for sharding in costs.shardings(candidate, kinds):
        table = costs.table(candidate, kinds[0], sharding)
        for row, mode in enumerate(candidate.recompute):
            yield Way(costs, candidate, sharding, mode, _only(table, row), boundary_s)


def _only(table: StageTable, row: int) -> StageTable:
    """The table of one recompute mode."""
    return replace(
        table,
        time_s=table.time_s[row : row + 1],
        activation_bytes=table.activation_bytes[row : row + 1],
        transient_bytes=table.transient_bytes[row : row + 1],
        parts=replace(table.parts, host_activation_bytes=table.parts.host_activation_bytes[row : row + 1]),
    )


def unlike_layers(model: ModelGraph) -> list[int]:
    """Layers that stand for all: copies of a block cost the same, but for the model's first layer."""
    return sorted({0, *{name: layer for layer, name in enumerate(model.layers)}.values()})


def _line(way: Way, layers: list[int]) -> Lines:
    table, parts = way.table, way.table.parts
    on_device = (table.time_s[0], table.extra_s, table.static_bytes, table.activation_bytes[0], table.transient_bytes[0])
    away = (parts.host_static_bytes, parts.host_activation_bytes[0], parts.nvme_bytes)
    return Lines(
        np.array([[figure[layers] for figure in (*on_device, *away)]]),
        np.array([[max(0.0, table.capacity_bytes), parts.host_capacity_bytes, parts.nvme_capacity_bytes]]),
        np.array([way.boundary_s]),
        np.array([table.step_s]),
    )
