"""Text of an XML 1.0 document. A writer of XML escapes markup itself, but not characters that XML has no way to write."""

from __future__ import annotations

import re

from meshwright.app.quoting.readable import readable

# XML 1.0 (fifth edition), production [2] Char: beside controls and surrogates these two are no characters.
_NO_CHARACTERS = re.compile("[\ufffe\uffff]")


def xml_line(text: str) -> str:
    """Text of an attribute, on one line."""
    return _NO_CHARACTERS.sub(lambda found: f"\\u{ord(found[0]):04x}", readable(text))
