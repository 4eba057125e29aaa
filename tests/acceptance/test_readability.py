"""Pages of the documentation get no longer and no harder to read."""

from __future__ import annotations

import pytest

from benchmarks.readability import known, pages, score

SLACK = 1.02
"""A sentence on a new option is no fault of its page."""


@pytest.mark.parametrize("name", [page.name for page in pages()])
def test_a_page_is_no_longer_and_no_harder_than_it_was(name: str) -> None:
    assert name in known(), "a new page: python -m benchmarks.readability --lower"
    now, most = score(next(page for page in pages() if page.name == name)), known()[name]
    assert now.words <= SLACK * most.words, f"{now.words} words, {most.words} before: shorten what is there"
    assert now.index <= SLACK * most.index + 0.1, f"index {now.index}, {most.index} before: shorter sentences"


def test_no_page_is_listed_that_is_gone() -> None:
    assert known().keys() == {page.name for page in pages()}
