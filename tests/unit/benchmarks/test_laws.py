"""What the benchmark of laws prints of a law that holds, and of one that a draw breaks."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from benchmarks.laws import holds
from tests.laws.law import Law


def is_below_fifty(number: int) -> None:
    assert number < 50


def below(most: int) -> Law:
    drawn = {"number": st.integers(0, most)}
    return Law(sentence="Numbers are below 50.", drawn=drawn, check=is_below_fifty, few=1, many=1, most=1, draw_s=0.0)


def test_draws_that_hold_are_counted_and_one_that_does_not_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert holds("small", below(9), 200)
    assert capsys.readouterr().out == "small: 10 draws hold, 0 s\n", "there are no more than ten"
    assert not holds("large", below(99), 200)
    said = capsys.readouterr().out
    assert said.startswith("large: BROKEN within 200 draws, ")
    assert "the draw: {'number': 50}" in said
