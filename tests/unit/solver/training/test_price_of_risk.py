"""The price of a plan's risk is solved, not guessed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.training.planner import plan_training
from tests.unit.solver.training.instances import random_request


@pytest.mark.slow
def test_the_price_is_the_gain_of_the_plan_at_the_other_risk() -> None:
    told = 0
    for seed in range(40):
        drawn = random_request(seed)
        request = replace(drawn, search=replace(drawn.search, risk=0.01, price_risk=0.5))
        plan = plan_training(request, stop=never_stop, progress=ignore_progress)
        if plan.certificate.objective is None:
            assert not any(note.startswith("price") for note in plan.notes)
            continue
        asked = replace(drawn, search=replace(drawn.search, risk=0.5))
        other = plan_training(asked, stop=never_stop, progress=ignore_progress)
        assert other.certificate.objective is not None
        note = plan.notes[-1]
        gain = 1 - other.certificate.objective / plan.certificate.objective
        if found := re.match(r"price of the risk: (.*)% better with risk 0.5", note):
            assert abs(float(found[1]) / 100 - gain) < 0.001
            told += 1
        else:
            assert note == "price of the risk: none, at best a plan at risk 0.5 is as good"
            assert abs(gain) < 1e-9
    assert told >= 2


def test_a_request_that_asks_for_no_price_is_solved_once() -> None:
    plan = plan_training(random_request(0), stop=never_stop, progress=ignore_progress)
    assert not any(note.startswith("price") for note in plan.notes)
