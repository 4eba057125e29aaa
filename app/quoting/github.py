"""Text in a workflow command of GitHub Actions: its message and its properties.

Source: GitHub Docs, "Workflow commands for GitHub Actions"; escapes as in the toolkit's ``command.ts``.
"""

from __future__ import annotations

from meshwright.app.quoting.readable import readable


def workflow_message(text: str) -> str:
    """Return the text as it follows the second ``::``; its lines stay lines."""
    return "%0A".join(readable(line).replace("%", "%25") for line in text.split("\n"))


def workflow_property(text: str) -> str:
    """A value between the name of a command and the second ``::``."""
    return readable(text).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
