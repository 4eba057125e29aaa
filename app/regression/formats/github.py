"""Workflow commands of GitHub Actions, which show findings beside the changed files of a pull request.

Source: GitHub Docs, "Workflow commands for GitHub Actions"; escapes as in the toolkit's ``command.ts``.
"""

from __future__ import annotations

from app.regression.report import CheckReport, Severity

COMMANDS = {Severity.NOTE: "notice", Severity.WARNING: "warning", Severity.ERROR: "error"}


def workflow_commands(report: CheckReport) -> list[str]:
    """One workflow command for each finding."""
    return [
        f"::{COMMANDS[finding.severity]} file={_property(report.path_of(plan))},line=1,"
        f"title={_property(f'meshwright: {finding.rule}')}::{_data(str(finding))}"
        for plan in report.plans
        for finding in plan.findings
    ]


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
