"""The ranks of a plan over the topology of its cluster: a box a node, a cell a device, coloured by what it holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from meshwright.app.pictures.seats import groups_of, nodes_of, places_of_ranks, seats
from meshwright.app.pictures.svg import WIDTH, drawing, label, legend, rectangle, words
from meshwright.app.text.figures import counted, number_range
from meshwright.costmodels.cluster.cluster import Cluster
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest

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
            if cell == _LARGE_CELL and number.isdigit():
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
