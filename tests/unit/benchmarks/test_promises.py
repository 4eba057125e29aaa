"""Measured figures go between their marks in the page, and into no other place."""

from __future__ import annotations

import pytest

from benchmarks.promises import PAGE, STEPS, Step, outcomes, put, rates


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_every_step_has_its_place_and_changes_nothing_else(step: Step) -> None:
    page = PAGE.read_text(encoding="utf-8")
    once = put(page, step.name, "one")
    assert put(put(once, step.name, "two"), step.name, "one") == once
    begin, end = (f"<!-- {word}: {step.name} -->" for word in ("measured", "end"))
    assert once.partition(begin)[0] == page.partition(begin)[0] and once.partition(end)[2] == page.partition(end)[2]


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="soak"):
        put("no marks", "soak", "text")


def test_loads_become_rows_and_the_rest_is_listed() -> None:
    printed = (
        "the machine now adds 40 million numbers a second in a Python loop\n"
        "stored plan, by digest: at most 1388/s, 0.69 ms of processor each\n"
        "    4000 of 4000 at 400/s: median 2.5 ms, p99 4.8 ms\n"
        "memory: 200 MiB before, 201 MiB after\n"
    )
    shown = rates(printed).splitlines()
    row = "| stored plan, by digest | 1388/s | 0.69 ms | 4000 of 4000 at 400/s: median 2.5 ms, 99% within 4.8 ms |"
    assert shown[2:4] == [row, ""] and len(shown) == 6


def test_lines_on_the_way_to_a_result_are_left_out() -> None:
    printed = "round 1: {'kill': 1}\nhour 12 (36 s): a\nhour 24 (76 s)\nhour 72 (447 s): c\nafter 10 restarts: d\n  0 faults\n"
    assert outcomes(printed).splitlines() == ["```text", "hour 12 (36 s): a", "hour 72 (447 s): c", "  0 faults", "```"]
