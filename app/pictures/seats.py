"""The seats of a plan: which device does what, and with which others it works.

Ranks of a stage lie tp innermost, then cp, then dp (`solver.verify.training.layout`); of a serving worker tp, then its other
degrees. They go through the cluster's node groups in the plan's order, over the first devices of each node where some are idle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.app.text.figures import axes as axes_in_words
from meshwright.app.text.figures import number_range
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.solver.answer.axes import Axes
from meshwright.solver.answer.layouts import ByGroup, Kinds, OfWorkers, Pools, Stagewise, Uniform
from meshwright.solver.answer.pipeline_plan import placement_of
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.answer.stage import Stage
from meshwright.solver.answer.workers import Workers


@dataclass(frozen=True, slots=True)
class Part:
    """Ranks that hold the same layers: their number among the parts of the plan, what they are in words, and their degrees.

    each     ranks of one replica among them
    trains   replicas reduce gradients together; those that serve do not know of each other
    """

    number: int
    name: str
    axes: Axes
    each: int
    trains: bool

    @property
    def replicas(self) -> int:
        """Replicas that hold these layers."""
        return self.axes.dp


@dataclass(frozen=True, slots=True)
class Seat:
    """A rank: the part it belongs to, and its place among the ranks of that part."""

    part: Part
    index: int

    @property
    def replica(self) -> int:
        """The replica that it is of."""
        return self.index // self.part.each

    @property
    def in_words(self) -> str:
        """The rank's part of its replica, and its coordinates."""
        axes, inner = self.part.axes, self.index % self.part.each
        places = [("replica", self.replica)] if axes.dp > 1 else []
        places += [("tp", inner % axes.tp)] if axes.tp > 1 else []
        places += [("cp", inner // axes.tp % axes.cp)] if axes.cp > 1 else []
        expert_tp = axes.tp if axes.etp is None else axes.etp
        places += [("ep", self.index // expert_tp % axes.ep)] if axes.ep > 1 else []
        return ", ".join([self.part.name, *(f"{name} {place}" for name, place in places)])


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that a rank works with along an axis."""

    axis: str
    ranks: str


def seats(answered: AnsweredRequest) -> dict[int, Seat]:
    """Return the seat of every rank of a plan."""
    found: dict[int, Seat] = {}
    trains = not isinstance(answered.plan.layout, OfWorkers)
    for number, (name, stage, each) in enumerate(_parts(answered)):
        part = Part(number, name, stage.axes, each, trains)
        for index, rank in enumerate(ranks_of_stage(stage)):
            found.setdefault(rank, Seat(part, index))
    return found


def groups_of(rank: int, found: dict[int, Seat], by_part: dict[int, list[int]]) -> list[Group]:
    """Return the ranks that share a rank's tensors, its sequences or its layers, each as far as there are several.

    ``by_part`` are the ranks of each part in order.
    """
    seat = found[rank]
    axes, each, ranks = seat.part.axes, seat.part.each, by_part[seat.part.number]
    replica = seat.index - seat.index % each
    inner = seat.index % each
    groups = []
    if axes.tp > 1:
        first = replica + inner - inner % axes.tp
        groups.append(Group("tp", _listed(ranks[first : first + axes.tp])))
    if axes.cp > 1:
        first = replica + inner % axes.tp
        groups.append(Group("cp", _listed(ranks[first : first + axes.tp * axes.cp : axes.tp])))
    if axes.dp > 1 and seat.part.trains:
        groups.append(Group("dp", _listed(ranks[inner::each])))
    return groups


def places_of_ranks(answered: AnsweredRequest) -> list[int]:
    """Return the device of each rank among those of the cluster, counted in the cluster's own order of groups."""
    cluster, placement = answered.request.cluster, placement_of(answered.plan)
    firsts, first = {}, 0
    for group in cluster.groups:
        firsts[group.name] = first
        first += group.n_devices
    order = placement.group_order or tuple(group.name for group in cluster.groups)
    of_name = {group.name: group for group in cluster.groups}
    places: list[int] = []
    for name in order:
        per_node, used = of_name[name].node.devices_per_node, of_name[name].node.devices_per_node
        used -= placement.idle_devices.get(name, 0)
        for node in range(of_name[name].nodes):
            places += range(firsts[name] + node * per_node, firsts[name] + node * per_node + used)
    return places


def nodes_of(cluster: Cluster) -> Iterator[tuple[str, range]]:
    """The nodes of a cluster in order: the name of each, and its devices."""
    first = 0
    for group in cluster.groups:
        of_group = f" of {group.name}" if len(cluster.groups) > 1 else ""
        for node in range(group.nodes):
            yield f"node {node}{of_group}", range(first, first + group.node.devices_per_node)
            first += group.node.devices_per_node


def ranks_of_stage(stage: Stage) -> list[int]:
    """Return the ranks of a stage in order."""
    return [rank for each in stage.devices for rank in range(each.first, each.first + each.count)]


def _parts(answered: AnsweredRequest) -> Iterator[tuple[str, Stage, int]]:
    """Parts of a plan: what each is in words, its stage, and the ranks of one of its replicas."""
    match answered.plan.layout:
        case Uniform(pipelines=pipelines) | Stagewise(pipelines=pipelines):
            for number, stage in enumerate(pipelines.stages):
                yield f"stage {number}", stage, stage.axes.tp * stage.axes.cp
        case ByGroup(groups=groups):
            for each in groups:
                for number, stage in enumerate(each.pipelines.stages):
                    yield f"{each.group} stage {number}", stage, stage.axes.tp * stage.axes.cp
        case OfWorkers() as layout:
            for workers, name in _named_workers(layout):
                for number, stage in enumerate(workers.stages):
                    of_stage = f" stage {number}" if len(workers.stages) > 1 else ""
                    yield f"{name}{of_stage}", stage, max(1, len(ranks_of_stage(stage)) // max(1, workers.count))
        case _:
            return


def _named_workers(layout: OfWorkers) -> Iterator[tuple[Workers, str]]:
    if isinstance(layout, Pools):
        yield layout.prefill_workers, "prefill"
        yield layout.decode_workers, "decode"
        return
    if isinstance(layout, Kinds):
        for workers in layout.all_workers:
            yield workers, axes_in_words(workers.axes)
        return
    yield layout.all_workers[-1], "worker"


def _listed(ranks: list[int]) -> str:
    """Ranks in words: neighbours joined, evenly spread ones by their step."""
    if len(ranks) > 1 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return number_range(ranks)
    if len(ranks) <= 4:
        return ", ".join(map(str, ranks))
    return f"{ranks[0]}, {ranks[1]} ... {ranks[-1]}"
