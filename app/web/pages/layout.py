"""The frame of every page: navigation, style, and headers that let nothing in from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from urllib.parse import urlencode

from fastapi.responses import HTMLResponse

from meshwright.app.base.quoting import html_text
from meshwright.app.pictures.page import STYLE

POLICY = "default-src 'none'; style-src 'self' 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
"""No script at all, nothing from another site, forms that go nowhere else. Pictures carry styles of their own."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

STYLE_SHEET = STYLE + (
    "form+.scroll{margin-top:1rem}"
    "nav{display:flex;flex-wrap:wrap;gap:.3rem 1rem;align-items:baseline;border-bottom:1px solid #8886;padding-bottom:.6rem}"
    "nav form{margin:0 0 0 auto}legend label{display:inline;font-weight:600}.fields{display:grid;gap:0 1rem;"
    "grid-template-columns:repeat(auto-fit,minmax(14rem,1fr))}.fields input[type=text]{width:100%}"
    "td a{white-space:normal}nav strong{margin-right:1rem}label{display:block;margin:.7rem 0 .2rem}label.beside{display:inline}"
    "p.lines{white-space:pre-line}"
    "form.beside{display:inline}dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}"
    "dd{margin:0;overflow-wrap:anywhere}"
    "pre.take{user-select:all;max-height:24rem;overflow:auto}td.number,th.number{text-align:right}"
    "@media(max-width:40rem){dl{grid-template-columns:1fr}dt{font-weight:600}}"
    "input,select,button{font:inherit;color:inherit;background:#8881;border:1px solid #8888;border-radius:.3rem;"
    "padding:.35rem .6rem;max-width:100%;box-sizing:border-box}input[type=text],input[type=password]{width:24rem}"
    "button{cursor:pointer;background:#0969da;border-color:#0969da;color:#fff}a{color:#0969da}"
    "fieldset{border:1px solid #8886;border-radius:.4rem;margin:1rem 0}.bad{border-left:.3rem solid #cf222e;padding-left:.8rem}"
    "progress{width:100%;height:1.2rem}.quiet{opacity:.75}:focus-visible{outline:3px solid #54aeff;outline-offset:2px}"
    "@media(prefers-color-scheme:dark){a{color:#58a6ff}}"
)
"""The style of the pages, served beside them."""


_PLACES = (
    ("/", "Plans"),
    ("/new", "New plan"),
    ("/runs", "Runs"),
    ("/replans", "Re-plans"),
    ("/clusters", "Clusters"),
    ("/calibrations", "Calibrations"),
    ("/checks", "Checks"),
    ("/docs", "API"),
)
_LINKS = "".join(f'<a href="{place}">{name}</a>' for place, name in _PLACES)


def page(title: str, body: str, *, status: int = 200, refresh_s: int | None = None, signed_in: bool = False) -> HTMLResponse:
    """Return a page; ``body`` is HTML, ``title`` is text. With ``refresh_s`` the browser asks again after so many seconds."""
    again = "" if refresh_s is None else f'<meta http-equiv="refresh" content="{refresh_s}">'
    leave = '<form method="post" action="/sign-out"><button>Sign out</button></form>' if signed_in else ""
    return HTMLResponse(
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<title>{html_text(title)} - Meshwright</title><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'{again}<link rel="stylesheet" href="/pages.css"></head><body>'
        f'<nav aria-label="Meshwright"><strong>Meshwright</strong>{_LINKS}{leave}</nav><main>\n{body}</main></body></html>\n',
        status,
        HEADERS,
    )


def terms(pairs: Iterable[tuple[str, str]]) -> str:
    """Return names and what they stand for; names are text, the others HTML, and those that are empty are left out."""
    return f"<dl>{''.join(f'<dt>{html_text(name)}</dt><dd>{value}</dd>' for name, value in pairs if value)}</dl>"


def link(place: str, text: str) -> str:
    """Return a link to a place of these pages; both are text."""
    return f'<a href="{html_text(place)}">{html_text(text)}</a>'


def following(place: str, words: str, given: Mapping[str, str | None]) -> str:
    """Return a link to the next page of a list; ``given`` holds its cursor and filters, those that are None left out."""
    query = urlencode({name: value for name, value in given.items() if value is not None})
    return f'<p><a href="{html_text(f"{place}?{query}")}" rel="next">{html_text(words)}</a></p>'


def field(name: str, label: str, *, value: str = "", hint: str = "", kind: str = "text", needed: bool = False) -> str:
    """Return a line of a form; all its words are text."""
    must = " required" if needed else ""
    box = f'<input id="{name}" name="{name}" type="{kind}" value="{html_text(value)}" placeholder="{html_text(hint)}"{must}>'
    return f'<div><label for="{name}">{html_text(label)}</label>{box}</div>'


def tick(name: str, label: str, *, on: bool = False) -> str:
    """Return a box to tick with its words."""
    mark = " checked" if on else ""
    box = f'<input type="checkbox" id="{name}" name="{name}" value="yes"{mark}>'
    return f'<p>{box} <label class="beside" for="{name}">{html_text(label)}</label></p>'


def choice(name: str, label: str, options: Iterable[tuple[str, str]], chosen: str | None = None) -> str:
    """Return a choice of a form: values with the words that are shown for them."""
    rows = "".join(
        f'<option value="{html_text(value)}"{" selected" if value == (chosen or "") else ""}>{html_text(words)}</option>'
        for value, words in options
    )
    return f'<div><label for="{name}">{html_text(label)}</label><select id="{name}" name="{name}">{rows}</select></div>'


def alert(text: str) -> str:
    """Return what went wrong, or needs to be seen first."""
    return f'<p class="bad" role="alert">{html_text(text)}</p>'


def moment(when: datetime) -> str:
    """Return a moment in UTC, as lists show it."""
    return f"{when:%Y-%m-%d %H:%M}"
