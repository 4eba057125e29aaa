"""YAML text that a terminal and the log of a continuous integration run show without obeying.

Source: YAML 1.2.2, section 5.7 (escapes of double-quoted scalars, which those of JSON are among).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from meshwright.app.quoting.json_text import json_text
from meshwright.app.quoting.readable import HIDDEN

_ONE_LINE = 2**31 - 1
"""So many columns that no text is folded."""


class _Dumper(yaml.SafeDumper):
    """Writes texts that a reader might not see or a runner might obey in double quotes, as JSON has them."""

    def write_double_quoted(self, text: str, split: bool = True) -> None:
        self.write_indicator(json_text(text, indent=None), True)


def _represented(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = not HIDDEN.search(text.replace("\n", "")) and "::" not in text and "##[" not in text
    style = '"' if not is_plain else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represented)


def yaml_text(document: Mapping[str, Any]) -> str:
    """The document as YAML, its keys in their order; a parser reads the same document."""
    return yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, allow_unicode=False, width=_ONE_LINE)
