"""The numbers of replicas of each layout on each node group, when a plan may have several kinds: an exact knapsack.

On a node group kinds lie one after another, widest stages first, each from a multiple of its width, so that no stage leaves its
node. A table over the group's devices, layout by layout, has the highest rate of so many kinds on so many devices; fronts of
cost and rate of the groups are joined into that of the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_ROUNDING = 1e-12
"""Relative difference of two rates, or costs, that is rounding alone."""


@dataclass(frozen=True, slots=True)
class Item:
    """Replicas of a layout.

    place            in the list of layouts, which also settles ties
    group            node group
    devices, width   of a replica, and after how many of them it may start
    counts           allowed numbers of replicas, ascending
    rate             requests per second that each bears
    """

    place: int
    group: str
    devices: int
    width: int
    counts: tuple[int, ...]
    rate: float


@dataclass(frozen=True, slots=True)
class Room:
    """Devices of a node group, and what each costs."""

    devices: int
    unit_cost: float


@dataclass(frozen=True, slots=True)
class Mix:
    """Numbers of replicas by the places of their layouts, in the order in which they lie; the rate and cost of all."""

    parts: tuple[tuple[int, int], ...]
    rate: float
    cost: float


def fastest_mix(items: Sequence[Item], rooms: Mapping[str, Room], kinds: range) -> Mix | None:
    """The highest rate of so many kinds; of equal rates the cheapest, then fewest kinds. None where so many do not fit."""
    fronts = _cluster_fronts(items, rooms, kinds[-1], enough=math.inf)
    lasts = [fronts[k][-1] for k in kinds if fronts[k]]
    top = max((mix.rate for mix in lasts), default=0.0)
    equals = [mix for mix in lasts if mix.rate >= top * (1.0 - _ROUNDING)]
    return min(equals, key=lambda mix: (mix.cost, len(mix.parts), mix.parts), default=None)


def cheapest_mix(items: Sequence[Item], rooms: Mapping[str, Room], kinds: range, *, rate: float) -> Mix | None:
    """The least cost of so many kinds that bear a rate; of equal costs fewest kinds, then the highest rate. None
    where none bear it."""
    enough = rate * (1.0 - _ROUNDING)
    fronts = _cluster_fronts(items, rooms, kinds[-1], enough=enough)
    firsts = [next((mix for mix in fronts[k] if mix.rate >= enough), None) for k in kinds]
    found = [mix for mix in firsts if mix is not None]
    least = min((mix.cost for mix in found), default=0.0)
    equals = [mix for mix in found if mix.cost <= least * (1.0 + _ROUNDING)]
    return min(equals, key=lambda mix: (len(mix.parts), -mix.rate, mix.parts), default=None)


def _cluster_fronts(items: Sequence[Item], rooms: Mapping[str, Room], kinds: int, *, enough: float) -> list[list[Mix]]:
    """[kinds] mixes of exactly so many kinds that no other beats in cost and rate, by cost."""
    joined: list[list[Mix]] = [[Mix((), 0.0, 0.0)], *([] for _ in range(kinds))]
    for name, room in rooms.items():
        own = _group_fronts([item for item in items if item.group == name], room, kinds)
        joined = [
            _front([mix for k in range(total + 1) for mix in _joined(joined[k], own[total - k])], enough)
            for total in range(kinds + 1)
        ]
    return joined


def _joined(left: list[Mix], right: list[Mix]) -> list[Mix]:
    """All pairs of two fronts that no other pair of them beats."""
    if not left or not right:
        return []
    costs = np.add.outer([mix.cost for mix in left], [mix.cost for mix in right]).ravel()
    rates = np.add.outer([mix.rate for mix in left], [mix.rate for mix in right]).ravel()
    order = np.lexsort((-rates, costs))
    tops = np.maximum.accumulate(rates[order])
    kept = order[np.concatenate([[True], tops[1:] > tops[:-1]])]
    pairs = [divmod(int(at), len(right)) for at in kept]
    return [
        Mix((*left[a].parts, *right[b].parts), float(rates[at]), float(costs[at]))
        for at, (a, b) in zip(kept, pairs, strict=True)
    ]


def _front(mixes: list[Mix], enough: float) -> list[Mix]:
    """Mixes that no other beats in cost and rate, by cost, up to the first that bears enough."""
    kept: list[Mix] = []
    for mix in sorted(mixes, key=lambda mix: (mix.cost, -mix.rate, mix.parts)):
        if kept and kept[-1].rate >= enough:
            break
        if not kept or mix.rate > kept[-1].rate * (1.0 + _ROUNDING):
            kept.append(mix)
    return kept


def _group_fronts(items: Sequence[Item], room: Room, kinds: int) -> list[list[Mix]]:
    """[kinds] the fronts of one node group."""
    ordered = sorted(items, key=lambda item: (-item.width, item.place))
    best = np.full((kinds + 1, room.devices + 1), -math.inf)
    best[0, 0] = 0.0
    chosen = []
    for item in ordered:
        before, counts = best.copy(), np.zeros(best.shape, dtype=np.int64)
        for count in item.counts:
            if count * item.devices <= room.devices:
                _put(item, count, before, best, counts)
        chosen.append(counts)
    fronts: list[list[Mix]] = []
    for k in range(kinds + 1):
        reachable = np.flatnonzero(best[k] > -math.inf)
        mixes = [Mix(_parts(ordered, chosen, k, int(u)), float(best[k, u]), int(u) * room.unit_cost) for u in reachable]
        fronts.append(_front(mixes, math.inf))
    return fronts


def _put(
    item: Item, count: int, before: npt.NDArray[np.float64], best: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]
) -> None:
    """So many replicas behind whatever ends at a multiple of their width, where that is better."""
    taken = count * item.devices
    starts = np.arange(0, best.shape[1] - taken, item.width)
    with_it = before[:-1, starts] + count * item.rate
    better = with_it > best[1:, starts + taken] * (1.0 + _ROUNDING)
    for k, place in zip(*np.nonzero(better), strict=True):
        best[k + 1, starts[place] + taken] = with_it[k, place]
        counts[k + 1, starts[place] + taken] = count


def _parts(ordered: Sequence[Item], chosen: list[npt.NDArray[np.int64]], kinds: int, end: int) -> tuple[tuple[int, int], ...]:
    """The replicas behind an entry of the table, in the order in which they lie."""
    parts: list[tuple[int, int]] = []
    for item, counts in zip(reversed(ordered), reversed(chosen), strict=True):
        count = int(counts[kinds, end])
        if count:
            parts.append((item.place, count))
            kinds, end = kinds - 1, end - count * item.devices
    return tuple(reversed(parts))
