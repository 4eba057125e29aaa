"""Workflow commands of GitHub Actions, which show findings beside the changed files of a pull request."""

from __future__ import annotations

from meshwright.app.quoting import workflow_message, workflow_property
from meshwright.app.regression.report import CheckReport, Severity

COMMANDS = {Severity.NOTE: "notice", Severity.WARNING: "warning", Severity.ERROR: "error"}


def workflow_commands(report: CheckReport) -> str:
    """One workflow command for each finding, a line each."""
    return "".join(
        f"::{COMMANDS[finding.severity]} file={workflow_property(report.path_of(plan))},line=1,"
        f"title={workflow_property(f'meshwright: {finding.rule}')}::{workflow_message(str(finding))}\n"
        for plan in report.plans
        for finding in plan.findings
    )
