"""Reports of a check: the page that ``meshwright check`` prints, and the formats of other tools.

The page is a table of plans, then each finding with its cause and its fix. What all report is in `app.regression.report`.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TextIO
from urllib.parse import quote

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meshwright.app.base.console import PageConsole, plain
from meshwright.app.base.errors import EXIT_NO
from meshwright.app.base.figures import counted, gib, seconds, significant
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


VERDICT_STYLES = {
    Verdict.SAME: "green",
    Verdict.BETTER: "green",
    Verdict.CHANGED: "cyan",
    Verdict.WARNED: "yellow",
}
SEVERITY_STYLES = {Severity.NOTE: "green", Severity.WARNING: "yellow", Severity.ERROR: "red"}
SPEEDS = (("ttft_p95_s", "P95 TTFT"), ("tokens_per_s", "tokens/s"))
"""Figures that stand for a plan's speed; the first that it has."""
SHOWN_INPUTS = 4
ACCEPTED_SILENTLY = frozenset({FindingRule.NEW, FindingRule.MISSING})
"""Findings of which an updated lock leaves nothing to say: the table has their verdict."""


def print_check(report: CheckReport, *, width: int | None, to: TextIO) -> None:
    """Print the page on a stream."""
    console = PageConsole(file=to, width=width)
    console.print(_table(report))
    for plan in report.plans:
        for findings in plan.grouped_findings:
            if not (report.updated and findings[0].rule in ACCEPTED_SILENTLY):
                console.print()
                _print_findings(console, plan, findings, with_fix=not report.updated)
        if plan.verdict is Verdict.CHANGED and plan.changed_inputs:
            console.print()
            console.print(plain(f"{plan.name}: changed, not worse", style="cyan"))
            console.print(Padding(plain(_inputs_line(plan), style="dim"), (0, 0, 0, 2), expand=False))
    for line in meshwright_lines(report):
        console.print(plain(f"Changed in Meshwright: {line}", style="yellow"))
    console.print()
    console.print(_ending(report))


def figure_columns(plan: PlanCheck) -> tuple[str, str, str]:
    """Speed, memory left and devices: as they are now, with what they were where that differs as shown."""
    return (
        _figure(plan, *_speed(plan)),
        _figure(plan, "memory_headroom_bytes", ""),
        _figure(plan, "devices", ""),
    )


def meshwright_lines(report: CheckReport) -> list[str]:
    """Changes of versions and calibrations, each with the number of plans that it touches."""
    return [f"{change} ({counted(plans, 'plan')})" for change, plans in report.meshwright_changes.items()]


def _table(report: CheckReport) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("plan", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    for name in ("speed", "memory left", "devices"):
        table.add_column(name, justify="right", overflow="fold")
    for plan in report.plans:
        style = VERDICT_STYLES.get(plan.verdict, "bold red")
        table.add_row(
            plain(plan.name.removesuffix(".plan.yaml")),
            plain(plan.verdict.value, style=style),
            *(plain(cell) for cell in figure_columns(plan)),
        )
    return table


def _print_findings(console: Console, plan: PlanCheck, findings: tuple[Finding, ...], *, with_fix: bool) -> None:
    """Findings of one cause, then the cause and the fix."""
    for finding in findings:
        console.print(plain(f"{plan.name}: ", style="bold") + plain(finding.message, style=SEVERITY_STYLES[finding.severity]))
    for label, text in (("cause", findings[0].cause), ("fix", findings[0].fix if with_fix else "")):
        if text:
            console.print(Padding(plain(f"{label}: ", style="bold") + plain(text), (0, 0, 0, 2), expand=False))


def _inputs_line(plan: PlanCheck) -> str:
    shown = "; ".join(str(change) for change in plan.changed_inputs[:SHOWN_INPUTS])
    more = len(plan.changed_inputs) - SHOWN_INPUTS
    return f"{shown} and {more} more" if more > 0 else shown


def _ending(report: CheckReport) -> Text:
    if report.updated:
        return plain(f"Lock written: {report.summary}. Commit it: checks compare plans with it.", style="bold green")
    if report.passed:
        return plain(f"Passed: {report.summary}", style="bold green")
    accept = f". If every change is meant: {report.accept}" if report.exit_code == EXIT_NO else ""
    return plain(f"Failed: {report.summary}{accept}", style="bold red")


def _speed(plan: PlanCheck) -> tuple[str, str]:
    known = {**(plan.was or {}), **(plan.now or {})}
    return next(((name, words) for name, words in SPEEDS if name in known), SPEEDS[-1])


def _figure(plan: PlanCheck, name: str, words: str) -> str:
    was, now = (None if side is None or name not in side else _shown(name, side[name]) for side in (plan.was, plan.now))
    if now is None:
        return "-" if was is None else f"{was} -> none"
    value = now if was is None or was == now else f"{was} -> {now}"
    return f"{value} {words}".strip()


def _shown(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return gib(value)
    if name.endswith("_s") and not name.endswith("per_s"):
        return seconds(value)
    return f"{value:g}" if name == "devices" else significant(value)
