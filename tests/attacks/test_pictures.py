"""Names in pages and drawings to take away: shown, never obeyed, and nothing is fetched."""

from __future__ import annotations

from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings

from meshwright.app.pictures.drawings import memory_drawing, timeline_drawing
from meshwright.app.pictures.page import plan_page
from meshwright.solver.answer.plan import AnsweredRequest
from tests.attacks.names import names
from tests.attacks.planned import REQUESTS, planned, renamed

ATTRIBUTES = {"href", "src", "onload", "onclick", "action"}


class Elements(HTMLParser):
    """The elements of a page, and the names of their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}


def elements(form: str, name: str) -> Elements:
    found = Elements()
    found.feed(plan_page(AnsweredRequest(*renamed(planned(form), name))))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("form", list(REQUESTS)[:2])
@settings(max_examples=10, deadline=None)
@example("<script>alert(1)</script>")
@example('"><img src=x onerror=alert(1)>')
@example("</title></svg><script>")
@given(name=names)
def test_a_name_makes_no_element_of_its_own(form: str, name: str) -> None:
    good, bad = elements(form, "good"), elements(form, name)
    assert bad.tags == good.tags and "script" not in bad.tags
    assert bad.attributes == good.attributes and not bad.attributes & ATTRIBUTES


def test_drawings_of_a_plan_with_a_hostile_name_are_well_formed() -> None:
    training = next(form for form in REQUESTS if planned(form)[0].kind == "training")
    answered = AnsweredRequest(*renamed(planned(training), "<script>&\x00"))
    for draw in (timeline_drawing, memory_drawing):
        root = ElementTree.fromstring(draw(answered))
        assert len(list(root.iter("{http://www.w3.org/2000/svg}rect"))) > 4
