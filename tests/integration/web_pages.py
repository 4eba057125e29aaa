"""Shared by the tests of web pages and others: Page, safe."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser

import httpx


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
    """The text of a page, its headers checked: no script, nothing from elsewhere."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and "script-src" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    page = Page(answer.text)
    assert not page.tags["script"] and all(place.startswith("/") for place in page.places), page.places
    return answer.text
