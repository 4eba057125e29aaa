"""Reports of a check in the formats of other tools.

What they report is in `app.regression.report`; the page for a terminal is `app.regression.terminal_page`.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from meshwright.app.base.quoting import (
    json_text,
    markdown_code,
    markdown_code_cell,
    markdown_text,
    readable,
    workflow_message,
    workflow_property,
    xml_line,
)
from meshwright.app.base.version import installed_version
from meshwright.app.regression.report import RULE_TEXTS, CheckReport, Finding, FindingRule, PlanCheck, Severity, Verdict
from meshwright.app.regression.terminal_page import figure_columns, meshwright_lines

# Workflow commands of GitHub Actions, which show findings beside the changed files of a pull request.

COMMANDS = {Severity.NOTE: "notice", Severity.WARNING: "warning", Severity.ERROR: "error"}


def workflow_commands(report: CheckReport) -> str:
    """One workflow command for each finding, a line each."""
    return "".join(
        f"::{COMMANDS[finding.severity]} file={workflow_property(report.path_of(plan))},line=1,"
        f"title={workflow_property(f'meshwright: {finding.rule}')}::{workflow_message(str(finding))}\n"
        for plan in report.plans
        for finding in plan.findings
    )


# A check as JUnit XML, which CI servers read: one test case a plan, its figures in the output.

SUITE = "meshwright check"
ERRORS = frozenset({Verdict.INVALID, Verdict.FAILED})


def junit_xml(report: CheckReport) -> str:
    """The XML document: what is worse is a failure, what could not be checked an error, a warning is output."""
    errors = [plan for plan in report.plans if plan.verdict in ERRORS]
    failures = [plan for plan in report.plans if not plan.passed and plan.verdict not in ERRORS]
    totals = {"tests": len(report.plans), "failures": len(failures), "errors": len(errors)}
    counts = {name: str(total) for name, total in totals.items()} | {"time": "0"}
    suites = ET.Element("testsuites", {"name": SUITE, **counts})
    suite = ET.SubElement(suites, "testsuite", {"name": xml_line(report.folder), **counts, "skipped": "0"})
    for plan in report.plans:
        _add_case(suite, plan, report.folder)
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _add_case(suite: ET.Element, plan: PlanCheck, folder: str) -> None:
    case = ET.SubElement(suite, "testcase", {"name": xml_line(plan.name), "classname": xml_line(folder), "time": "0"})
    if not plan.passed:
        failing = [finding for finding in plan.findings if finding.severity is Severity.ERROR]
        kind = "error" if plan.verdict in ERRORS else "failure"
        attributes = {"message": xml_line(failing[0].message), "type": failing[0].rule.value}
        ET.SubElement(case, kind, attributes).text = _findings([str(finding) for finding in failing])
    rest = [finding for finding in plan.findings if finding.severity is not Severity.ERROR]
    if rest:
        ET.SubElement(case, "system-out").text = _findings([f"{finding.severity}: {finding}" for finding in rest])


def _findings(texts: list[str]) -> str:
    """Findings, one a line."""
    return "\n".join(map(xml_line, texts))


# A Markdown page of a check, for the job summary of a CI run or a comment on a pull request.

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


# A check as SARIF 2.1.0, which code scanning reads: one result a finding, at the request file.
#
# Source: OASIS "Static Analysis Results Interchange Format (SARIF) Version 2.1.0", sections 3.13 to 3.30.

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {Severity.NOTE: "note", Severity.WARNING: "warning", Severity.ERROR: "error"}


def sarif_text(report: CheckReport) -> str:
    """The SARIF log as JSON text."""
    return json_text(sarif_log(report)) + "\n"


def sarif_log(report: CheckReport) -> dict[str, Any]:
    """The SARIF log: one run of one tool."""
    rules = [{"id": rule.value, "shortDescription": {"text": RULE_TEXTS[rule]}} for rule in FindingRule]
    driver = {"name": "Meshwright", "version": installed_version(), "rules": rules}
    results = [_result(report, plan, finding) for plan in report.plans for finding in plan.findings]
    invocation = {"executionSuccessful": report.exit_code <= 1, "exitCode": report.exit_code}
    run = {"tool": {"driver": driver}, "invocations": [invocation], "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(report: CheckReport, plan: PlanCheck, finding: Finding) -> dict[str, Any]:
    place = {"artifactLocation": {"uri": quote(readable(report.path_of(plan)))}, "region": {"startLine": 1}}
    return {
        "ruleId": finding.rule.value,
        "ruleIndex": list(FindingRule).index(finding.rule),
        "level": LEVELS[finding.severity],
        "message": {"text": readable(str(finding))},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {"plan/v1": readable(f"{plan.name}:{finding.rule}")},
    }


FORMATS: Mapping[str, Callable[[CheckReport], str]] = MappingProxyType(
    {
        "github": workflow_commands,
        "junit": junit_xml,
        "markdown": markdown,
        "sarif": sarif_text,
    }
)
"""The report in each format, by the module that makes it."""
