"""A Markdown page of a check, for the job summary of a CI run or a comment on a pull request."""

from __future__ import annotations

from meshwright.app.quoting import markdown_code, markdown_code_cell, markdown_text
from meshwright.app.regression.report import CheckReport, Finding, PlanCheck, Severity
from meshwright.app.regression.terminal_page import figure_columns, meshwright_lines

MARKS = {Severity.NOTE: "better", Severity.WARNING: "warning", Severity.ERROR: "**failed**"}


def markdown(report: CheckReport) -> str:
    """The page: verdict, a table of plans, findings with cause and fix."""
    state = "updated" if report.updated else "passed" if report.passed else "failed"
    lines = [f"## Plans in {markdown_code(report.folder)}: {state}", "", f"{markdown_text(report.summary)}.", ""]
    lines += ["| plan | verdict | speed | memory left | devices |", "|---|---|---|---|---|"]
    lines += [_row(plan) for plan in report.plans]
    for plan in report.plans:
        for findings in plan.grouped_findings:
            lines += ["", *(_finding(plan, finding) for finding in findings)]
            lines += [f"  - cause: {markdown_text(findings[0].cause)}"] if findings[0].cause else []
            lines += [f"  - fix: {markdown_text(findings[0].fix)}"] if findings[0].fix else []
    changes = meshwright_lines(report)
    if changes:
        lines += ["", "Changed in Meshwright:", "", *(f"- {markdown_text(line)}" for line in changes)]
    return "\n".join(lines) + "\n"


def _row(plan: PlanCheck) -> str:
    cells = (markdown_code_cell(plan.name), plan.verdict.value, *(markdown_text(cell) for cell in figure_columns(plan)))
    return f"| {' | '.join(cells)} |"


def _finding(plan: PlanCheck, finding: Finding) -> str:
    return f"- {MARKS[finding.severity]} {markdown_code(plan.name)}, {finding.rule}: {markdown_text(finding.message)}"
