"""A check as JUnit XML, which CI servers read: one test case a plan, its figures in the output."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from meshwright.app.quoting import xml_line
from meshwright.app.regression.report import CheckReport, PlanCheck, Severity, Verdict

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
