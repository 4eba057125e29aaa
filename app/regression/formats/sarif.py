"""A check as SARIF 2.1.0, which code scanning reads: one result a finding, at the request file.

Source: OASIS "Static Analysis Results Interchange Format (SARIF) Version 2.1.0", sections 3.13 to 3.30.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from meshwright.app.quoting import json_text, readable
from meshwright.app.regression.report import RULE_TEXTS, CheckReport, Finding, FindingRule, PlanCheck, Severity
from meshwright.app.version import installed_version

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
