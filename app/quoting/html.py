"""Text of HTML 5 and of SVG, as an element's text and as a quoted attribute.

Source: HTML Living Standard, section 13.3 (escaping a string).
"""

from __future__ import annotations

import html

from meshwright.app.quoting.xml import xml_line


def html_text(text: str) -> str:
    """Return one line of text that a page shows as it is: no element, no entity, no end of an attribute."""
    return html.escape(xml_line(text), quote=True)


def html_lines(text: str) -> str:
    """Return lines of text for an element that keeps line ends."""
    return "\n".join(html_text(line) for line in text.split("\n"))


def html_attribute(document: str) -> str:
    """Return a whole document of ours as a quoted attribute, its line ends as they are."""
    return html.escape(document, quote=True)
