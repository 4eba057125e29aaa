"""The knapsack of kinds of workers against all numbers of replicas."""

from __future__ import annotations

import itertools
import random

import pytest

from meshwright.solver.serving.forms.kinds.form import Item, Mix, Room, cheapest_mix, fastest_mix

ROOMS = {"a": Room(16, 2.0), "h": Room(8, 4.0)}


def items_of(seed: int) -> list[Item]:
    generator = random.Random(seed)
    found = []
    for place in range(7):
        group, width = generator.choice("ah"), generator.choice((1, 2, 4, 8))
        devices = width * generator.choice((1, 1, 2))
        most = ROOMS[group].devices // devices
        counts = tuple(range(1, most + 1)) if generator.random() < 0.7 else tuple(n for n in (1, 3) if n <= most)
        rate = devices * generator.choice((0.9, 1.0, 1.15)) * (2.0 if group == "h" else 1.0)
        found.append(Item(place, group, devices, width, counts, rate))
    return found


def every_mix(items: list[Item], kinds: range) -> list[tuple[float, float]]:
    """Rate and cost of all numbers of replicas of so many layouts that lie on the devices there are."""
    found = []
    for chosen in (c for n in kinds for c in itertools.combinations(items, n)):
        for counts in itertools.product(*(item.counts for item in chosen)):
            taken = dict.fromkeys(ROOMS, 0)
            for item, count in zip(chosen, counts, strict=True):
                taken[item.group] += item.devices * count
            if all(taken[name] <= room.devices for name, room in ROOMS.items()):
                rate = sum(item.rate * count for item, count in zip(chosen, counts, strict=True))
                found.append((rate, sum(room.unit_cost * taken[name] for name, room in ROOMS.items())))
    return found


def described(mix: Mix, items: list[Item]) -> tuple[float, float]:
    """Rate and cost of a mix, from its parts."""
    by_place = {item.place: item for item in items}
    assert all(count in by_place[place].counts for place, count in mix.parts)
    rate = sum(by_place[place].rate * count for place, count in mix.parts)
    cost = sum(by_place[p].devices * count * ROOMS[by_place[p].group].unit_cost for p, count in mix.parts)
    return pytest.approx(rate), pytest.approx(cost)  # type: ignore[return-value]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kinds", [range(1, 2), range(2, 3), range(1, 4)])
def test_the_knapsack_finds_what_enumeration_finds(seed: int, kinds: range) -> None:
    items = items_of(seed)
    every = every_mix(items, kinds)
    fastest = fastest_mix(items, ROOMS, kinds)
    assert fastest is not None
    assert len(fastest.parts) in kinds
    top = max(rate for rate, _ in every)
    assert fastest.rate == pytest.approx(top)
    assert fastest.cost == pytest.approx(min(cost for rate, cost in every if rate >= top * (1 - 1e-9)))
    assert (fastest.rate, fastest.cost) == described(fastest, items)
    for share in (0.2, 0.55, 0.8, 1.0):
        cheapest = cheapest_mix(items, ROOMS, kinds, rate=share * top)
        assert cheapest is not None
        assert cheapest.cost == pytest.approx(min(cost for rate, cost in every if rate >= share * top * (1 - 1e-9)))
        assert (cheapest.rate, cheapest.cost) == described(cheapest, items)
    assert cheapest_mix(items, ROOMS, kinds, rate=1.01 * top) is None


def test_a_kind_starts_where_its_stages_fit_into_nodes() -> None:
    # Three ranks, then two: those would begin at the fourth device, which is not a multiple of two.
    odd = [Item(0, "a", 3, 3, (1, 2), 3.0), Item(1, "a", 2, 2, (1, 2, 3), 2.0)]
    room = {"a": Room(5, 1.0)}
    found = fastest_mix(odd, room, range(1, 3))
    assert found is not None
    assert found.parts == ((1, 2),)
    assert fastest_mix(odd, {"a": Room(8, 1.0)}, range(1, 3)) == Mix(((0, 2), (1, 1)), 8.0, 8.0)


def test_nothing_to_choose_from_is_no_mix() -> None:
    assert fastest_mix([], ROOMS, range(1, 3)) is None
    assert cheapest_mix([], ROOMS, range(1, 3), rate=1.0) is None
