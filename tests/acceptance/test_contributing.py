"""The lists of CONTRIBUTING.md that say how to add something are the files that it takes, and not too many."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.additions import ADDITIONS, Addition, add, copied_tree, passes

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EACH = pytest.mark.parametrize("addition", ADDITIONS.values(), ids=ADDITIONS.keys())


def listed(heading: str) -> list[str]:
    """The files that the page lists under a heading."""
    (section,) = re.findall(rf"^### {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return re.findall(r"^- `([^`]+)`:", section, re.MULTILINE)


@EACH
def test_the_list_has_the_files_of_the_addition_and_not_too_many(addition: Addition) -> None:
    assert sorted(listed(addition.heading)) == sorted(addition.files)
    assert addition.of_the_house <= addition.most


def test_every_list_has_an_addition() -> None:
    headings = re.findall(r"^### (.*)$", PAGE.partition("## How to add")[2], re.MULTILINE)
    assert headings == [addition.heading for addition in ADDITIONS.values()]


@EACH
def test_the_files_are_enough(addition: Addition) -> None:
    """That each is missed where it is left out takes longer: ``benchmarks/additions.py`` sees to it."""
    with copied_tree() as tree:
        add(tree, addition.pieces)
        assert passes(tree, addition.tests)
