"""The ranks of a plan over the topology of its cluster: a box a node, a cell a device, coloured by what it holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from meshwright.app.base.digits import is_digits
from meshwright.app.base.figures import axes as axes_in_words
from meshwright.app.base.figures import counted, number_range
from meshwright.app.pictures.svg import WIDTH, drawing, label, legend, rectangle, words
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.layouts import ByGroup, Kinds, OfWorkers, Pools, Stagewise, Uniform, Workers
from meshwright.solver.answer.pipeline_plan import placement_of
from meshwright.solver.answer.plan import AnsweredRequest
from meshwright.solver.answer.stage import Axes, Stage

MOST_DEVICES = 1024
"""Devices that a drawing shows one by one; of more it shows nodes."""
MOST_NODES = 4096
"""Nodes that a drawing shows: about 0.7 MB."""
COLOURS = 8
"""Colours of parts; more parts begin again."""
_CELL, _GAP = 16, 2
_LARGE_CELL, _MOST_LARGE = 34, 128
"""Devices of small clusters are drawn with their ranks in them."""
_MOST_IN_A_ROW = 18
_IDLE = "free"

Look = Callable[[int], tuple[str, str]]
"""The look of a device of the cluster, and its words."""


def map_drawing(answered: AnsweredRequest) -> str:
    """Return the ranks over the cluster's nodes; raises InvalidInputError of an answer without a plan."""
    found = seats(answered)
    if not answered.plan.feasible or not found:
        raise InvalidInputError("there are no ranks to draw", given="an answer without a plan", allowed="a plan that fits")
    cluster = answered.request.cluster
    rank_of = {device: rank for rank, device in enumerate(places_of_ranks(answered))}
    is_split = len({seat.part.number for seat in found.values()}) > 1
    by_part: dict[int, list[int]] = defaultdict(list)
    for rank, seat in found.items():
        by_part[seat.part.number].append(rank)

    def look(device: int) -> tuple[str, str]:
        rank = rank_of.get(device)
        seat = None if rank is None else found.get(rank)
        if rank is None or seat is None:
            return _IDLE, "idle"
        groups = "".join(f"; {group.axis} with {group.ranks}" for group in groups_of(rank, found, by_part))
        return f"c{(seat.part.number if is_split else seat.replica) % COLOURS}", f"rank {rank}: {seat.in_words}{groups}"

    parts = {
        (seat.part.number if is_split else seat.replica): (seat.part.name if is_split else f"replica {seat.replica}")
        for seat in found.values()
    }
    title = f"{counted(len(found), 'rank')} over {counted(sum(1 for _ in nodes_of(cluster)), 'node')}"
    shown = [(f"c{number % COLOURS}", name) for number, name in sorted(parts.items())[:COLOURS]]
    if len(parts) > COLOURS:
        shown[-1] = (shown[-1][0], f"{shown[-1][1]}, then colours begin again")
    if cluster.n_devices <= MOST_DEVICES:
        return devices_drawing(title, cluster, look, shown)
    return _nodes_drawing(title, cluster, look, shown)


def devices_drawing(title: str, cluster: Cluster, look: Look, names: Sequence[tuple[str, str]]) -> str:
    """Return the devices of a cluster, a box a node, each as ``look`` says; ``names`` are those of the looks."""
    parts, x, y, lowest = [], 0.0, 4.0, 0.0
    cell = _LARGE_CELL if cluster.n_devices <= _MOST_LARGE else _CELL
    for name, devices in nodes_of(cluster):
        columns = min(len(devices), _MOST_IN_A_ROW)
        rows = -(-len(devices) // columns)
        width, height = columns * cell + 2 * _GAP, rows * cell + 2 * _GAP
        if x + width > WIDTH:
            x, y = 0.0, lowest + 6
        parts.append(rectangle(x, y, width, height, look="node", hint=name))
        for place, device in enumerate(devices):
            colour, said = look(device)
            left, top = x + _GAP + place % columns * cell, y + _GAP + place // columns * cell
            hint = f"{name}, device {place}, {said}"
            parts.append(rectangle(left + 1, top + 1, cell - 2, cell - 2, look=colour, hint=hint))
            number = said.partition(":")[0].removeprefix("rank ")
            if cell == _LARGE_CELL and is_digits(number):
                parts.append(label(left + cell / 2, top + cell / 2 + 5, number))
        lowest = max(lowest, y + height)
        x += width + 6
    return drawing(f"{title}.", int(lowest) + 50, [*parts, *_named(lowest, title, names)])


def _nodes_drawing(title: str, cluster: Cluster, look: Look, names: Sequence[tuple[str, str]]) -> str:
    """The nodes of a large cluster, a cell each, as the first device of each looks."""
    a_row = WIDTH // _CELL
    parts, bottom = [], 0.0
    nodes = list(nodes_of(cluster))
    for place, (name, devices) in enumerate(nodes[:MOST_NODES]):
        colour, first = look(devices[0])
        _, last = look(devices[-1])
        left, top = place % a_row * _CELL, 4 + place // a_row * _CELL
        words_of = first if first == last else f"{first.split(';')[0]} to {last.split(';')[0]}"
        parts.append(rectangle(left + 1, top + 1, _CELL - 2, _CELL - 2, look=colour, hint=f"{name}, {words_of}"))
        bottom = max(bottom, top + _CELL)
    left_out = "" if len(nodes) <= MOST_NODES else f"; nodes {number_range(range(MOST_NODES))} are shown"
    said = f"{title}, a cell a node{left_out}"
    return drawing(f"{said}.", int(bottom) + 50, [*parts, *_named(bottom, said, names)])


def _named(bottom: float, said: str, names: Sequence[tuple[str, str]]) -> list[str]:
    return [words(0, bottom + 18, said), *legend(bottom + 38, names)]


# The seats of a plan: which device does what, and with which others it works.
#
# Ranks of a stage lie tp innermost, then cp, then dp (`solver.verify.training.layout`); of a serving worker tp, then its other
# degrees. They go through the cluster's node groups in the plan's order, over the first devices of each node where some are
# idle.


@dataclass(frozen=True, slots=True)
class MapPart:
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

    part: MapPart
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
        part = MapPart(number, name, stage.axes, each, trains)
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
