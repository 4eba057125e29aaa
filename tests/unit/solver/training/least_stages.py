"""The least step time of stages that differ, straight from what they may be: every number of devices of each stage, every cut
of the layers, and every way to run each stage, whose table is that of a pipeline of its like."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.cluster.cluster import Cluster, GroupTopology, NodeGroup, NodeType
from meshwright.solver.problem.request import TrainingRequest
from meshwright.solver.training.costs.candidate_tables import TrainingCosts
from meshwright.solver.training.forms.stagewise.stage_sizes import sized_request
from meshwright.solver.training.space.candidates import Candidate
from meshwright.solver.training.space.schedules import PLAIN
from tests.unit.solver.training.stage_columns import Columns, Floats, Table, alike, n_choices

Figures = npt.NDArray[np.float64]
"""[way, 2]: time and extra of each way to run a stage."""

Stage = tuple[int, int]
"""Index of a stage's node group, and its devices."""


@dataclass
class LeastOfStages:
    """The least step time, infinite where nothing fits, and how many plans there are."""

    least_s: float = math.inf
    n_plans: float = 0.0


def least_of_stages(request: TrainingRequest, clusters: Iterator[Cluster], *, beaten_too: bool = False) -> LeastOfStages:
    """The least over arrangements of the node groups, micro-batches, stages, their devices, cuts and ways to run them.

    Of a stage's ways those are combined of which no other has less time and no more extra, unless ``beaten_too``: a step
    takes no less time where a stage takes more of either.
    """
    found, known = LeastOfStages(), dict[tuple[NodeType, int], _Ways]()
    for cluster in clusters:
        arranged = replace(request, cluster=cluster)
        ways: dict[Stage, _Ways] = {}
        for place, group in enumerate(cluster.groups):
            for size in every_size(arranged, group):
                if (group.node, size) not in known:
                    known[group.node, size] = _Ways(arranged, group, size)
                ways[place, size] = known[group.node, size]
        _least_on(arranged, ways, found, beaten_too=beaten_too)
    return found


def _least_on(request: TrainingRequest, ways: dict[Stage, _Ways], found: LeastOfStages, *, beaten_too: bool) -> None:
    """Try all stages on one arrangement, those of a group behind those of the one before."""
    n_layers, groups = len(request.model.layers), request.cluster.groups
    for n_stages in (n for n in request.search.pp or range(2, n_layers + 1) if 2 <= n <= n_layers):
        for stages in itertools.product(sorted(ways), repeat=n_stages):
            used = [sum(size for place, size in stages if place == index) for index in range(len(groups))]
            if used != [group.n_devices for group in groups] or any(a > b for (a, _), (b, _) in itertools.pairwise(stages)):
                continue
            links = [_links(request.cluster, stages, index) for index in range(n_stages)]
            for m in set.intersection(*(set(ways[stage].tables) for stage in stages)):
                held = [min(m, n_stages - index) for index in range(n_stages)]
                for cuts in itertools.combinations(range(1, n_layers), n_stages - 1):
                    spans = [(a, b - 1) for a, b in itertools.pairwise((0, *cuts, n_layers))]
                    each = zip(stages, spans, held, links, strict=True)
                    fit = [ways[stage].fit(m, span, most, between) for stage, span, most, between in each]
                    found.n_plans += math.prod(ways[stage].number(m) for stage in stages)
                    found.least_s = min(found.least_s, _least_s(fit if beaten_too else [unbeaten(one) for one in fit], m))


def every_size(request: TrainingRequest, group: NodeGroup) -> list[int]:
    """Devices of a stage in a group: a divisor of a node's, or whole nodes; whole nodes alone where anything may go to hosts,
    which devices of a node share."""
    search, node = request.search, group.node.devices_per_node
    shares = (search.offload_optimizer, search.offload_activations, search.offload_weights, search.offload_gradients)
    inside = [] if any(map(any, shares)) else [size for size in range(1, node) if node % size == 0]
    whole = [node * count for count in range(1, group.nodes + 1)]
    return [size for size in (*inside, *whole) if size < request.cluster.n_devices]


Links = tuple[tuple[float, float] | None, tuple[float, float] | None]
"""Bytes/s and latency of a device's link to the stages before and behind; None for its own group's."""


def _links(cluster: Cluster, stages: Sequence[Stage], index: int) -> Links:
    """The slower network of both sides of each border; at an end of the pipeline that of the other border stands for both."""
    neighbours = [n for n in (index - 1, index + 1) if 0 <= n < len(stages)]
    own = _network(cluster, stages[index][0])
    slower = [min(_network(cluster, stages[n][0]), own) for n in neighbours]
    first, last = ((speed, -latency) if (speed, latency) != own else None for speed, latency in (slower * 2)[:2])
    return first, last


def _network(cluster: Cluster, place: int) -> tuple[float, float]:
    """Bytes/s of a device's share of its group's network, and its latency, negative."""
    node = cluster.groups[place].node
    return node.inter.bytes_per_s / node.devices_per_node / cluster.oversubscription, -node.inter.latency_s


def _least_s(ways: list[Figures], m: int) -> float:
    """The least step time of all combinations of ways of the stages."""
    longest_s, tail_s = np.zeros(1), np.zeros(1)
    for each in ways:
        tail_s = (np.maximum(tail_s[:, None], each[:, 1]) + each[:, 0]).ravel()
        longest_s = np.maximum(longest_s[:, None], each[:, 0]).ravel()
    return float(((m - 1) * longest_s + tail_s).min(initial=math.inf))


def unbeaten(figures: Figures) -> Figures:
    """Times and extras of which no other has less of both."""
    ordered = figures[np.lexsort((figures[:, 1], figures[:, 0]))]
    least_before = np.minimum.accumulate(np.concatenate([[math.inf], ordered[:, 1]]))[:-1]
    return ordered[ordered[:, 1] < least_before]


class _Ways:
    """Every way to run stages of so many devices of a group, by the number of micro-batches."""

    def __init__(self, request: TrainingRequest, group: NodeGroup, size: int):
        self.tables: dict[int, list[tuple[Candidate, Table]]] = {}
        self._known: dict[tuple[int, tuple[int, int], int, Links], Figures] = {}
        sized = sized_request(request, group, size, pp=2)
        self._costs = TrainingCosts(sized)
        for candidates in alike(sized):
            plain = [candidate for candidate in candidates if candidate.pipelining == PLAIN]
            if plain and n_choices(self._costs, plain[0]):
                table = Columns(self._costs, plain).tables(0)[0]
                self.tables.setdefault(plain[0].n_microbatches, []).append((plain[0], table))

    def number(self, m: int) -> int:
        """Return the number of ways to run a run of layers."""
        return sum(table.n_modes * table.fields.shape[2] for _, table in self.tables[m])

    def fit(self, m: int, span: tuple[int, int], held: int, links: Links) -> Figures:
        """Ways that fit with so many micro-batches at once, each pair of time and extra once."""
        key = (m, span, held, links)
        if key not in self._known:
            every = [
                way
                for candidate, table in self.tables[m]
                for way in _fitting(table, *span, held, self._sends_s(candidate, links))
            ]
            self._known[key] = np.unique(np.concatenate(every), axis=0)
        return self._known[key]

    def _sends_s(self, candidate: Candidate, links: Links) -> float:
        """Return the seconds that a micro-batch's sends take over these links."""
        kind = self._costs.stage_kinds(candidate)[0]
        (setting,) = self._costs.settings(candidate, kind)
        borders = tuple(_at(own, link) for own, link in zip(kind.borders, links, strict=True))
        return self._costs.boundary_s(candidate, replace(kind, borders=borders), setting)


def _at(own: GroupTopology, link: tuple[float, float] | None) -> GroupTopology:
    return own if link is None else replace(own, inter_bytes_per_s=link[0], inter_latency_s=link[1])


def _fitting(table: Table, first: int, last: int, held: int, sends_s: float) -> Iterator[Figures]:
    """Of each recompute mode the ways to run layers ``first`` .. ``last`` that fit."""
    layers, one = slice(first, last + 1), table.one

    def total(name: str) -> Floats:
        return np.asarray(table.fields[table.row(name), layers].sum(axis=1), np.float64)

    static, extra_s = total("static_bytes")[0], total("extra_s")[0] + (table.step_s if first else 0.0)
    transient = table.fields[table.row("transient_bytes"), layers].max(axis=1)
    device = static + held * total("activation_bytes") + transient
    host = total("host_static_bytes") + held * total("host_activation_bytes")
    fits = (device <= one.capacity_bytes) & (host <= one.parts.host_capacity_bytes)
    fits &= total("nvme_bytes") <= one.parts.nvme_capacity_bytes
    times_s = total("time_s") + sends_s
    for mode in range(table.n_modes):
        yield np.stack([times_s[mode], np.broadcast_to(extra_s, times_s[mode].shape)], axis=1)[fits[mode]]
