"""Each law on draws, and on the page that says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.laws.table import LAWS

DESIGN = Path(__file__).parents[2] / "docs" / "design.md"


@pytest.mark.parametrize("name", LAWS)
def test_the_law_holds(name: str) -> None:
    LAWS[name].hold(LAWS[name].few)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_the_law_holds_often(name: str) -> None:
    LAWS[name].hold(LAWS[name].many, first=1)


def test_laws_stand_in_the_design_and_in_files_of_their_own() -> None:
    said = " ".join(DESIGN.read_text(encoding="utf-8").split())
    missing = [name for name, law in LAWS.items() if law.sentence not in said]
    assert not missing, f"docs/design.md does not say the laws {missing}"
    files = {path.stem for path in Path(__file__).parent.glob("*.py")} - {"__init__", "law", "table", "test_laws"}
    assert files == set(LAWS), "a law a file, and its line in the table"


def test_draws_are_a_minute_a_law_in_the_slow_tier_and_20_000_in_the_benchmark() -> None:
    long = {name: law.many * law.draw_s for name, law in LAWS.items() if law.many * law.draw_s > 60.0}
    assert not long, f"seconds of {long}"
    assert sum(law.most for law in LAWS.values()) == 20_000
    assert all(law.most >= max(100, law.many) for law in LAWS.values())
