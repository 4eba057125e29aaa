"""Limits of sequences beyond the ordinary one are looked at where as many run at once, and answer more requests there."""

from __future__ import annotations

import pytest

from meshwright.solver.control import ignore_progress, never_stop
from meshwright.solver.serving.engines.layouts import ORDINARY_SEQUENCES
from meshwright.solver.serving.engines.traffic import Share
from meshwright.solver.serving.planning import asked_of
from meshwright.solver.serving.promise.candidates import Candidate, Measured
from meshwright.solver.serving.promise.evaluation import Evaluator
from meshwright.solver.serving.promise.question import Refused, measurements, usable_candidates
from tests.unit.solver.serving.requests import cluster, serving_request


def asked_at(rate: float) -> tuple[Evaluator, list[Candidate]]:
    """Limits for short prompts and long answers on one device, whose cache holds more sequences than an ordinary limit."""
    request = serving_request(
        prompt=100, output=500, ttft_ms=2000.0, tpot_ms=100.0, on=cluster(node="dgx-b200", per_node=1), rate=rate
    )
    question = asked_of(request, never_stop, ignore_progress).question
    engine = next(each for each in question.engines if each.layout.devices == 1)
    usable = usable_candidates(question.evaluator, engine)
    assert not isinstance(usable, Refused)
    return question.evaluator, usable


def measured_at(rate: float) -> list[Measured]:
    evaluator, usable = asked_at(rate)
    return list(measurements(evaluator, usable, Share(rate)))


def test_larger_limits_are_left_alone_where_fewer_sequences_run() -> None:
    runs = measured_at(5.0)
    assert all(run.keeps for run in runs)
    assert max(run.candidate.sequences for run in runs) == ORDINARY_SEQUENCES
    assert max(run.peak_running for run in runs) < ORDINARY_SEQUENCES


@pytest.mark.parametrize("rate", [80.0, 82.0], ids=["too busy", "too late"])
def test_larger_limits_keep_a_load_that_the_ordinary_one_misses(rate: float) -> None:
    runs = measured_at(rate)
    assert not any(run.keeps for run in runs if run.candidate.sequences <= ORDINARY_SEQUENCES)
    assert any(run.keeps and run.peak_running > ORDINARY_SEQUENCES for run in runs)
    for step in {run.candidate.step_tokens for run in runs}:
        larger = [run for run in runs if run.candidate.step_tokens == step and run.candidate.sequences > ORDINARY_SEQUENCES]
        assert all(run.peak_running == run.candidate.sequences for run in larger[:-1]), "one never reached is the last upwards"


def test_no_limit_is_said_to_answer_more_than_its_bound() -> None:
    evaluator, usable = asked_at(80.0)
    for candidate in usable:
        if candidate.sequences >= ORDINARY_SEQUENCES:
            assert evaluator.capacity(candidate) <= 1.05 * evaluator.rate_bound(candidate), "but for a short run's noise"
