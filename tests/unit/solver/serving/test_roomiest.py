"""The roomiest of plans of equal cost takes the place of the best only where what is asked of it besides holds."""

from __future__ import annotations

import pytest

from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.serving.planning import asked_of
from meshwright.solver.serving.promise.candidates import Measured
from meshwright.solver.serving.workers.cheapest import cheapest, choose_roomiest, of_equal_cost, roominess
from tests.unit.solver.serving.requests import serving_request

pytestmark = pytest.mark.usefixtures("short_simulations", "few_batch_limits")


def test_a_roomier_plan_that_is_not_accepted_is_passed_over() -> None:
    question = asked_of(serving_request(rate=16.0, ttft_ms=800.0, tpot_ms=30.0), never_stop, ignore_progress).question
    first = cheapest(question).best
    assert first is not None

    def chosen(accepts: bool | None) -> Measured:
        seen: list[Measured] = []

        def judge(measured: Measured) -> bool:
            seen.append(measured)
            return bool(accepts)

        result = cheapest(question)
        choose_roomiest(question, result, of_equal_cost(question, first), accepts=None if accepts is None else judge)
        assert result.best is not None and bool(seen) == (accepts is not None)
        assert bool(result.equal) == (accepts is None), "of others nobody knows whether they would be accepted"
        return result.best.measured

    free = chosen(None)
    assert roominess(question.evaluator, free) < roominess(question.evaluator, first.measured), "a case where it matters"
    assert chosen(True).candidate.key == free.candidate.key
    assert chosen(False).candidate.key == first.measured.candidate.key
