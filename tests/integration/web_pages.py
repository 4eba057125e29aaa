"""Shared by the tests of web pages and others: Page, safe."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser

import httpx

from meshwright.app.web.pages.layout import SCRIPT


class Page(HTMLParser):
    """The tags, the names of attributes and the addresses that a browser would see."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.attributes = Counter[str](), set[str]()
        self.places: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count a tag."""
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}
        self.places += [value or "" for name, value in attrs if name in ("href", "src", "action")]


def safe(answer: httpx.Response, status: int = 200) -> str:
    """The text of a page, its headers checked: no script but the service's own, nothing from elsewhere."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    check_policy(answer)
    assert answer.headers["x-content-type-options"] == "nosniff"
    page = Page(answer.text)
    assert all(place.startswith("/") for place in page.places), page.places
    return answer.text


def check_policy(answer: httpx.Response) -> None:
    """Check that a page has one script, the service's file, and a policy that lets in no other and no markup of words."""
    policy = answer.headers["content-security-policy"].split("; ")
    assert policy[:2] == ["default-src 'none'", "script-src 'self'"] and "trusted-types 'none'" in policy
    assert [each for each in policy if each.startswith("connect-src")] == ["connect-src 'self'"] * (
        "data-events" in answer.text
    )
    assert re.findall(r"<script[^>]*>", answer.text) == [f'<script src="{SCRIPT.place}" defer>']
