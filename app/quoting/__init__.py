"""Quoting: a stranger's text in a format of ours, so that the format's reader takes it for text and nothing else.

One function a format. All spell out what a reader can't see (``app.quoting.readable``); each then does what its format asks.
Nothing else writes a name into a script, a page or a report.
"""

from __future__ import annotations

from meshwright.app.quoting.csv_text import csv_text
from meshwright.app.quoting.github import workflow_message, workflow_property
from meshwright.app.quoting.html import html_attribute, html_lines, html_text
from meshwright.app.quoting.json_text import json_line, json_text
from meshwright.app.quoting.markdown import markdown_code, markdown_code_cell, markdown_text
from meshwright.app.quoting.readable import HIDDEN, readable, terminal_line, terminal_lines, without_commands
from meshwright.app.quoting.shell import here_document, shell_comment, shell_word
from meshwright.app.quoting.xml import xml_line
from meshwright.app.quoting.yaml_text import yaml_text

__all__ = [
    "HIDDEN",
    "csv_text",
    "here_document",
    "html_attribute",
    "html_lines",
    "html_text",
    "json_line",
    "json_text",
    "markdown_code",
    "markdown_code_cell",
    "markdown_text",
    "readable",
    "shell_comment",
    "shell_word",
    "terminal_line",
    "terminal_lines",
    "without_commands",
    "workflow_message",
    "workflow_property",
    "xml_line",
    "yaml_text",
]
