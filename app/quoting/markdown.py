"""Text in GitHub's Markdown: as text, as code, and in a cell of a table.

Source: GitHub Flavored Markdown Spec 0.29, sections 2.4 (backslash escapes), 4.10 (tables) and 6.3 (code spans).
"""

from __future__ import annotations

import re

from meshwright.app.quoting.readable import readable

# An underscore between letters or digits emphasizes nothing, and most names have some.
_MARKUP = re.compile(r"[\\`*\[\]<>#&~!$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_BLOCK_START = re.compile(r"^(\s*)(?=[-+=:])|^(\s*\d+)(?=[.)])")
# A backslash keeps none of these from its meaning in every reader: bars split cells, addresses become links, "@" calls people.
_AS_ENTITY = re.compile(r"\||:(?=//)|(?<=www)\.|@", re.IGNORECASE)


def markdown_text(text: str) -> str:
    """One line of text that Markdown shows as it is, in a cell of a table and where a line begins, too: no markup, no link."""
    escaped = _MARKUP.sub(r"\\\g<0>", readable(text).strip())
    named = _AS_ENTITY.sub(lambda found: f"&#{ord(found[0])};", escaped)
    return _BLOCK_START.sub(lambda found: f"{found[0]}\\", named)


def markdown_code(text: str) -> str:
    """Code on one line, between more backticks than it has in a row."""
    shown = readable(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    # A space after the opening and before the closing fence is no part of the code, and keeps its own backticks and spaces.
    space = " " if shown.startswith(("`", " ")) or shown.endswith(("`", " ")) or not shown else ""
    return f"{fence}{space}{shown}{space}{fence}"


def markdown_code_cell(text: str) -> str:
    """Code in a cell of a table. A bar would split the cell inside a code span, too."""
    return f"<code>{markdown_text(text)}</code>" if "|" in text else markdown_code(text)
