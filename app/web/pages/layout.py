"""What every page is made with: its templates, and headers that let nothing in from elsewhere."""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlencode

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse

from meshwright.app.base.templates import Hyperlink, Templates
from meshwright.app.pictures.page import TEMPLATES

COOKIE = "meshwright_key"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""One script, a file of ours that can't make markup of words; nothing from another site, forms that go nowhere else. Pictures
carry styles of their own."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

_FOLDER = Path(__file__).parents[1] / "templates"
_TEMPLATES = Templates(_FOLDER, TEMPLATES)


class OwnFile:
    """A file that pages load: its text, and the place under which browsers keep it until it changes."""

    def __init__(self, name: str, text: str, media_type: str):
        self._text, self._media_type = text, media_type
        self._version = sha256(text.encode()).hexdigest()[:16]
        self.place = f"/{name}?v={self._version}"

    def answer(self, version: str) -> Response:
        """Return the file. Another version may be asked for while replicas of the service are replaced: nobody keeps that."""
        kept = "max-age=31536000, immutable" if version == self._version else "no-store"
        return PlainTextResponse(self._text, headers=HEADERS | {"cache-control": kept}, media_type=self._media_type)


STYLE = OwnFile("pages.css", _TEMPLATES.render("pages.css"), "text/css")
SCRIPT = OwnFile("pages.js", (_FOLDER / "pages.js").read_text(encoding="utf-8"), "text/javascript")


def render(
    request: Request | None,
    name: str,
    /,
    *,
    status: int = 200,
    refresh_s: int | None = None,
    events: str | None = None,
    **values: object,
) -> HTMLResponse:
    """Return a page made by a template; with ``refresh_s`` the browser asks again after so many seconds.

    ``events`` is the place of a stream that the script reads in the place of asking again.
    ``request`` is None on pages for which it does not matter who asks: those have no button that signs out.
    """
    is_signed_in = request is not None and COOKIE in request.cookies
    return HTMLResponse(
        _TEMPLATES.render(
            name,
            is_signed_in=is_signed_in,
            refresh_s=refresh_s,
            events=events,
            style=STYLE.place,
            script=SCRIPT.place,
            **values,
        ),
        status,
        HEADERS if events is None else HEADERS | {"content-security-policy": f"{POLICY}; connect-src 'self'"},
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
