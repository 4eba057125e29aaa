"""What every page is made with: its templates, and headers that let nothing in from elsewhere."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse

from meshwright.app.base.templates import Hyperlink, Templates
from meshwright.app.pictures.page import TEMPLATES

COOKIE = "meshwright_key"

POLICY = "default-src 'none'; style-src 'self' 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
"""No script at all, nothing from another site, forms that go nowhere else. Pictures carry styles of their own."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

_TEMPLATES = Templates(Path(__file__).parents[1] / "templates", TEMPLATES)

STYLE_SHEET = _TEMPLATES.render("pages.css")
"""The style of the pages, served beside them."""


def render(
    request: Request | None, name: str, /, *, status: int = 200, refresh_s: int | None = None, **values: object
) -> HTMLResponse:
    """Return a page made by a template; with ``refresh_s`` the browser asks again after so many seconds.

    ``request`` is None on pages for which it does not matter who asks: those have no button that signs out.
    """
    is_signed_in = request is not None and COOKIE in request.cookies
    return HTMLResponse(
        _TEMPLATES.render(name, is_signed_in=is_signed_in, refresh_s=refresh_s, **values),
        status,
        HEADERS,
    )


def following(place: str, words: str, cursor: str | None, **filters: str | None) -> Hyperlink | None:
    """Return a link to the next page of a list, where its cursor says that there is one; filters that are None are left out."""
    if cursor is None:
        return None
    given = {"cursor": cursor, **filters}
    return Hyperlink(f"{place}?{urlencode({name: value for name, value in given.items() if value is not None})}", words)


def moment(when: datetime) -> str:
    """Return a moment in UTC, as lists show it."""
    return f"{when:%Y-%m-%d %H:%M}"
