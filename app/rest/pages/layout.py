"""The frame of every page: navigation, style, and headers that let nothing in from elsewhere."""

from __future__ import annotations

from fastapi.responses import HTMLResponse

from meshwright.app.pictures.page import STYLE
from meshwright.app.quoting import html_text

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
    "nav strong{margin-right:1rem}label{display:block;margin:.7rem 0 .2rem}"
    "input,select,button{font:inherit;color:inherit;background:#8881;border:1px solid #8888;border-radius:.3rem;"
    "padding:.35rem .6rem;max-width:100%;box-sizing:border-box}input[type=text],input[type=password]{width:24rem}"
    "button{cursor:pointer;background:#0969da;border-color:#0969da;color:#fff}a{color:#0969da}"
    "fieldset{border:1px solid #8886;border-radius:.4rem;margin:1rem 0}.bad{border-left:.3rem solid #cf222e;padding-left:.8rem}"
    "progress{width:100%;height:1.2rem}.quiet{opacity:.75}:focus-visible{outline:3px solid #54aeff;outline-offset:2px}"
    "@media(prefers-color-scheme:dark){a{color:#58a6ff}}"
)
"""The style of the pages, served beside them."""


def page(title: str, body: str, *, status: int = 200, refresh_s: int | None = None, signed_in: bool = False) -> HTMLResponse:
    """Return a page; ``body`` is HTML, ``title`` is text. With ``refresh_s`` the browser asks again after so many seconds."""
    again = "" if refresh_s is None else f'<meta http-equiv="refresh" content="{refresh_s}">'
    leave = '<form method="post" action="/sign-out"><button>Sign out</button></form>' if signed_in else ""
    return HTMLResponse(
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<title>{html_text(title)} - Meshwright</title><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'{again}<link rel="stylesheet" href="/pages.css"></head><body>'
        '<nav aria-label="Meshwright"><strong>Meshwright</strong><a href="/">Plans</a><a href="/new">New plan</a>'
        f"{leave}</nav><main>\n{body}</main></body></html>\n",
        status,
        HEADERS,
    )


def table(name: str, heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table that scrolls by keyboard too; its name and heads are text, cells are HTML."""
    head = "".join(f'<th scope="col">{html_text(text)}</th>' for text in heads)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    place = f'<div class="scroll" tabindex="0" role="region" aria-label="{html_text(name)}">'
    return f"{place}<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
