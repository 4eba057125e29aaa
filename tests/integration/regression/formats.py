"""The rules of the report formats, as far as a report of ours can break them.

JUnit: the schema that Jenkins' xUnit plugin publishes (junit-10.xsd). SARIF: the required properties and enumerations of
sarif-schema-2.1.0.json.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any
from urllib.parse import urlsplit

CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"testcase", "properties", "system-out", "system-err"},
    "testcase": {"skipped", "error", "failure", "system-out", "system-err"},
}
REQUIRED = {
    "testsuites": {"tests", "failures", "errors"},
    "testsuite": {"name", "tests", "failures", "errors"},
    "testcase": {"name", "classname"},
    "failure": {"message", "type"},
    "error": {"message", "type"},
}
ALLOWED = {
    "testsuites": {"name", "time", "tests", "failures", "errors", "disabled"},
    "testsuite": {"name", "time", "tests", "failures", "errors", "disabled", "skipped", "timestamp", "hostname", "id"},
    "testcase": {"name", "classname", "time", "assertions", "status"},
    "failure": {"message", "type"},
    "error": {"message", "type"},
}


def check_junit(root: ET.Element) -> None:
    """Elements nest as they may, have the attributes they must have and no others, and the counts are true."""
    assert root.tag == "testsuites"
    for element in root.iter():
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set()), element.tag
        assert REQUIRED.get(element.tag, set()) <= set(element.attrib) <= ALLOWED.get(element.tag, set()), element.tag
    for suite in (root, *root.iter("testsuite")):
        for attribute, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
            assert int(suite.attrib[attribute]) == len(list(suite.iter(tag)))
    names = [(case.get("classname"), case.get("name")) for case in root.iter("testcase")]
    assert len(set(names)) == len(names)


def check_sarif(log: dict[str, Any]) -> None:
    """Assert the rules of SARIF 2.1.0 for a log, a run, a tool, a result and a location."""
    assert set(log) <= {"$schema", "version", "runs", "inlineExternalProperties", "properties"}
    assert log["version"] == "2.1.0"
    for run in log["runs"]:
        assert set(run) <= {"tool", "invocations", "results", "columnKind", "artifacts", "properties"}
        driver = run["tool"]["driver"]
        assert isinstance(driver["name"], str)
        assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
        rules = [rule["id"] for rule in driver["rules"]]
        assert len(set(rules)) == len(rules)
        assert all(isinstance(rule["shortDescription"]["text"], str) for rule in driver["rules"])
        assert all(isinstance(invocation["executionSuccessful"], bool) for invocation in run["invocations"])
        for result in run["results"]:
            _check_result(result, rules)


def _check_result(result: dict[str, Any], rules: list[str]) -> None:
    assert set(result) <= {"ruleId", "ruleIndex", "level", "message", "locations", "partialFingerprints"}
    assert isinstance(result["message"]["text"], str) and result["message"]["text"]
    assert result["level"] in ("none", "note", "warning", "error")
    assert rules[result["ruleIndex"]] == result["ruleId"]
    assert all(isinstance(value, str) for value in result["partialFingerprints"].values())
    for location in result["locations"]:
        place = location["physicalLocation"]
        uri = place["artifactLocation"]["uri"]
        assert re.fullmatch(r"[A-Za-z0-9._~!$&'()*+,;=:@%/-]+", uri) and urlsplit(uri).path
        assert place["region"]["startLine"] >= 1
