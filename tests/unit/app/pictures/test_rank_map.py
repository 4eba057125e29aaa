"""Who sits where: every rank has one seat, and its groups are those of the launchers' order."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any
from xml.etree import ElementTree

import pytest

from meshwright.app.pictures.rank_map import MOST_DEVICES, groups_of, map_drawing, places_of_ranks, seats
from meshwright.costmodels.errors import InvalidInputError
from meshwright.solver.answer.plan import AnsweredRequest
from tests.attacks.planned import REQUESTS, SERVED, TRAINED, planned
from tests.support.planned_documents import answered


def by_part(found: dict[int, Any]) -> dict[int, list[int]]:
    ranks: dict[int, list[int]] = defaultdict(list)
    for rank, seat in found.items():
        ranks[seat.part.number].append(rank)
    return ranks


@pytest.mark.slow_beyond(4)
@pytest.mark.parametrize("form", REQUESTS)
def test_every_rank_of_every_form_has_a_seat(form: str) -> None:
    plan, request = planned(form)
    given = AnsweredRequest(plan, request)
    found = seats(given)
    assert len(found) == plan.devices
    assert set(found) <= set(range(len(places_of_ranks(given))))
    root = ElementTree.fromstring(map_drawing(given))
    assert len(list(root.iter("{http://www.w3.org/2000/svg}rect"))) >= min(plan.devices, 2)


def test_groups_are_those_of_the_rank_order() -> None:
    given = answered({**TRAINED, "cluster": "16xH100", "search": {"tp": [2], "cp": [2], "pp": [2], "microbatch": [1]}})
    found = seats(given)
    parts = by_part(found)
    # Stage 0 holds ranks 0 to 7: tp innermost, then cp, then dp.
    assert {group.axis: group.ranks for group in groups_of(5, found, parts)} == {"tp": "4-5", "cp": "5, 7", "dp": "1, 5"}
    assert found[5].in_words == "stage 0, replica 1, tp 1, cp 0"
    sizes = Counter(seat.part.name for seat in found.values())
    assert sizes == {"stage 0": 8, "stage 1": 8}


def test_replicas_that_serve_share_nothing() -> None:
    given = answered(SERVED | {"objective": "throughput"})
    found = seats(given)
    assert len(found) > 1
    assert all(group.axis != "dp" for rank in found for group in groups_of(rank, found, by_part(found)))


@pytest.mark.slow
def test_large_clusters_are_drawn_by_node() -> None:
    small = {"tp": [8], "pp": [1], "cp": [1], "microbatch": [1]}
    work = {"kind": "training", "global_batch": 512, "seq_len": 4096}
    given = answered({**TRAINED, "cluster": f"{MOST_DEVICES // 8 + 64}x dgx-h100", "workload": work, "search": small})
    if not given.plan.feasible:
        work["global_batch"] = MOST_DEVICES // 8 + 64
        given = answered({**TRAINED, "cluster": f"{MOST_DEVICES // 8 + 64}x dgx-h100", "workload": work, "search": small})
    text = map_drawing(given)
    assert "a cell a node" in text and len(text) < 60_000


@pytest.mark.slow
def test_an_answer_without_a_plan_has_no_map() -> None:
    tight = answered({**TRAINED, "cluster": "1xL4", "search": {}})
    assert not tight.plan.feasible
    with pytest.raises(InvalidInputError, match="no ranks"):
        map_drawing(tight)
