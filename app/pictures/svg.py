"""Drawings in SVG as wide as their place: rectangles, circles and words, coloured by class, light and dark."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from meshwright.app.base.quoting import html_text

WIDTH = 960
"""Units of a drawing's width; a page scales them to its own."""
LEFT = 150
"""Units left of a drawing's bars, for their names."""
BARS = WIDTH - LEFT - 110
"""Units of a drawing's bars; their figures stand right of them."""

_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}"
    ".c0{fill:#3b78c3}.c1{fill:#d1783c}.c2{fill:#4b9b5f}.c3{fill:#a35fb0}.c4{fill:#c2a32d}.c5{fill:#7d8590}.c6{fill:#b94a5a}"
    ".c7{fill:#3fa7a7}.free{fill:#8883}.node{fill:none;stroke:#8886}.mark{fill:#cf222e}"
    ".s0{fill:#8883}.s1{fill:#3b78c355}.s2{fill:#3b78c388}.s3{fill:#3b78c3bb}.s4{fill:#3b78c3}"
    ".line{fill:none;stroke:#3b78c3;stroke-width:2}.second{stroke:#d1783c}.third{stroke:#4b9b5f}.limit{stroke:#b94a5a;"
    "stroke-dasharray:5 4}.grid{stroke:#8884;fill:none}.band{fill:#3b78c333}"
    ".axis rect{stroke:#fff8;stroke-width:.4;vector-effect:non-scaling-stroke}.axis .free{stroke:none}"
    ".axis .mark{stroke:#cf222e;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}}.on{fill:#fff;pointer-events:none}"
)


def drawing(title: str, height: int, parts: Sequence[str]) -> Markup:
    """Return a whole SVG document; ``title`` is read to who doesn't see it. With links in it, it is a group, not one image.

    Pages take it as it is: the functions of this room that make ``parts`` quote every name in them.
    """
    role = "group" if any("<a " in part for part in parts) else "img"
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="100%" role="{role}">'
        f"<title>{html_text(title)}</title><style>{_STYLE}</style>{''.join(parts)}</svg>\n"
    )


def words(x: float, y: float, text: str, *, end: bool = False) -> str:
    """Return a line of text that starts, or ends, at a place."""
    anchor = ' text-anchor="end"' if end else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{anchor}>{html_text(text)}</text>'


def label(x: float, y: float, text: str) -> str:
    """Return words in the middle of a coloured place, which let the pointer through to its hint."""
    return f'<text class="on" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{html_text(text)}</text>'


def rectangle(x: float, y: float, width: float, height: float, *, look: str, hint: str = "") -> str:
    """Return a rectangle; its hint is shown under the pointer."""
    named = f"<title>{html_text(hint)}</title>" if hint else ""
    return f'<rect class="{look}" x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}">{named}</rect>'


def along_axis(height: float, bars: Sequence[str], start: float, end: float, unit: str) -> str:
    """Return bars in a drawing of their own, from ``start`` to ``end`` of an axis: a page's script shows a part of it larger.

    Their width may be any: only lines keep theirs.
    """
    place = f'x="{LEFT}" y="0" width="{BARS}" height="{height}" viewBox="{LEFT} 0 {BARS} {height}" preserveAspectRatio="none"'
    return f'<svg class="axis" {place} data-start="{start:.9g}" data-end="{end:.9g}" data-unit="{unit}">{"".join(bars)}</svg>'


def circle(x: float, y: float, *, look: str, hint: str) -> str:
    """Return a point."""
    return f'<circle class="{look}" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{html_text(hint)}</title></circle>'


def legend(y: float, names: Sequence[tuple[str, str]]) -> list[str]:
    """Return names with their colours in rows of four; each is a look and a name."""
    parts = []
    for index, (look, name) in enumerate(names):
        x, row = LEFT + (index % 4) * 200, y + (index // 4) * 20
        parts += [rectangle(x, row - 10, 12, 12, look=look), words(x + 18, row, name)]
    return parts
