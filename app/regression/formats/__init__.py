"""Reports of a check in the formats of other tools, one format a file.

What they report is in `app.regression.report`; the page for a terminal is `app.regression.terminal_page`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from meshwright.app.regression.formats.github import workflow_commands
from meshwright.app.regression.formats.junit import junit_xml
from meshwright.app.regression.formats.markdown import markdown
from meshwright.app.regression.formats.sarif import sarif_text
from meshwright.app.regression.report import CheckReport

FORMATS: Mapping[str, Callable[[CheckReport], str]] = MappingProxyType(
    {
        "github": workflow_commands,
        "junit": junit_xml,
        "markdown": markdown,
        "sarif": sarif_text,
    }
)
"""The report in each format, by the module that makes it."""
