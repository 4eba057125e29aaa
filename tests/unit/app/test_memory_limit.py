"""A search that takes more memory than it may ends as at its time limit, and says so."""

from __future__ import annotations

import dataclasses

import pytest

from meshwright.app.base.solving import MEASURED_EVERY_S, MemoryLimit, SearchLimits, resident_bytes, said_of_memory, solve_here
from meshwright.solver.answer.predicted import Status
from meshwright.solver.problem.search import DEFAULT_MEMORY_LIMIT_BYTES, Search
from tests.support.requests_given import resolved, training

BIG_BYTES = 64 * 2**20
REMEDY = "raise search.memory_limit_bytes"


def measured_now(limit: MemoryLimit) -> bool:
    """Ask a limit whose last measurement is long ago."""
    limit.measured_s -= MEASURED_EVERY_S
    return limit()


def test_a_limit_is_on_what_the_process_grows_by_and_once_reached_it_stays() -> None:
    limit = MemoryLimit(BIG_BYTES // 2, resident_bytes())
    assert not measured_now(limit)
    held = bytearray(b"x" * BIG_BYTES)
    assert measured_now(limit)
    del held
    assert measured_now(limit)
    assert not MemoryLimit(BIG_BYTES // 2, resident_bytes())()


def test_a_request_that_says_nothing_has_the_limit_of_the_documentation() -> None:
    assert MemoryLimit.of(Search()).limit_bytes == DEFAULT_MEMORY_LIMIT_BYTES == 2 * 2**30
    assert MemoryLimit.of(Search(memory_limit_bytes=5)).limit_bytes == 5


def test_a_part_of_a_search_ends_with_the_memory_of_the_whole() -> None:
    limits = SearchLimits.of(resolved(training(search={"memory_limit_bytes": 1, "time_limit_s": 3600})))
    part = limits.part(0.5)
    assert not limits() or limits.memory.reached
    limits.memory.reached = True
    assert part() and limits()


def test_a_search_without_a_plan_is_undecided_and_says_to_allow_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryLimit, "of", staticmethod(lambda search: MemoryLimit(1, 0)))
    plan = solve_here(resolved(training()))
    assert plan.certificate.status is Status.UNDECIDED and not plan.feasible
    assert plan.reason is not None and plan.reason.remedies[0].startswith(REMEDY)
    assert REMEDY in plan.notes[-1]


def test_a_plan_says_that_its_gap_is_for_want_of_memory_and_a_proven_one_says_nothing() -> None:
    proven = solve_here(resolved(training()))
    assert proven.certificate.status is Status.OPTIMAL and not any(REMEDY in note for note in proven.notes)
    reached = MemoryLimit(1, 0, reached=True)
    assert said_of_memory(proven, reached) is proven
    certificate = dataclasses.replace(proven.certificate, status=Status.FEASIBLE)
    stopped = dataclasses.replace(proven, certificate=certificate)
    assert REMEDY in said_of_memory(stopped, reached).notes[-1]
    assert said_of_memory(stopped, MemoryLimit(1, 0)) is stopped
