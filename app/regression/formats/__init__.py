"""Reports of a check in the formats of other tools: JUnit XML, SARIF, GitHub's workflow commands, Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from app.regression.formats.github import workflow_commands
from app.regression.formats.junit import junit_xml
from app.regression.formats.markdown import markdown
from app.regression.formats.sarif import sarif_text
from app.regression.report import CheckReport

FORMATS: Mapping[str, Callable[[CheckReport], str]] = MappingProxyType(
    {
        "github": workflow_commands,
        "junit": junit_xml,
        "markdown": markdown,
        "sarif": sarif_text,
    }
)
"""The report in each format, by the module that makes it."""
