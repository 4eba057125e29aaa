"""A Markdown page of a check, for the job summary of a CI run or a comment on a pull request."""

from __future__ import annotations

import re

from app.regression.report import CheckReport, PlanCheck, Severity
from app.render.check_page import figure_columns, meshwright_lines

MARKS = {Severity.NOTE: "better", Severity.WARNING: "warning", Severity.ERROR: "**failed**"}


def markdown(report: CheckReport) -> str:
    """The page: verdict, a table of plans, findings with cause and fix."""
    state = "updated" if report.updated else "passed" if report.passed else "failed"
    lines = [f"## Plans in `{report.folder}`: {state}", "", f"{report.summary}.", ""]
    lines += ["| plan | verdict | speed | memory left | devices |", "|---|---|---|---|---|"]
    lines += [_row(plan) for plan in report.plans]
    for plan in report.plans:
        for findings in plan.grouped_findings:
            lines += ["", *(f"- {MARKS[f.severity]} `{plan.name}`, {f.rule}: {_text(f.message)}" for f in findings)]
            lines += [f"  - cause: {_text(findings[0].cause)}"] if findings[0].cause else []
            lines += [f"  - fix: {_text(findings[0].fix)}"] if findings[0].fix else []
    changes = meshwright_lines(report)
    if changes:
        lines += ["", "Changed in Meshwright:", "", *(f"- {_text(line)}" for line in changes)]
    return "\n".join(lines) + "\n"


def _row(plan: PlanCheck) -> str:
    cells = (f"`{plan.name}`", plan.verdict.value, *(_text(cell) for cell in figure_columns(plan)))
    return f"| {' | '.join(cells)} |"


def _text(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", text)
