"""Tables of pages: they scroll sideways, by keyboard too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshwright.app.quoting import html_text


def plain_table(name: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its name and heads are text, cells are HTML."""
    head = "".join(f'<th scope="col">{html_text(text)}</th>' for text in heads)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"{scrolled(name)}<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"


def scrolled(name: str, look: str = "") -> str:
    """Return the opening of a place that scrolls sideways; ``name`` is text and is read to who doesn't see it."""
    return f'<div class="{f"scroll {look}".strip()}" tabindex="0" role="region" aria-label="{html_text(name)}">'
