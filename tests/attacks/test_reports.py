"""Names in reports: each format is read back by its own parser, and means what the same report with good names means."""

from __future__ import annotations

import dataclasses
import io
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from markdown_it import MarkdownIt
from markdown_it.token import Token

from meshwright.app.base.solving import solve_here
from meshwright.app.regression.check import check_folder, update_folder
from meshwright.app.regression.formats import FORMATS, print_check
from meshwright.app.regression.report import CheckReport
from meshwright.app.requests.digests import KeyedRequest
from meshwright.costmodels.errors import MeshwrightError
from meshwright.solver.answer.plan import Plan
from meshwright.solver.control import ignore_progress
from tests.attacks.names import names
from tests.attacks.planned import TRAINED
from tests.attacks.runner import HIDDEN_IN_LINE, check_lines, commands
from tests.integration.regression.formats import check_junit, check_sarif

GOOD = "good"
FIXED = frozenset({"schema", "accept", "verdict", "digest", "counts"})
"""Fields whose texts are ours alone."""


class Here:
    """Plans in this process."""

    def plan_all(self, requests: Iterable[KeyedRequest]) -> dict[str, Plan | MeshwrightError]:
        return {
            key.digest: dataclasses.replace(solve_here(key.request, ignore_progress), digest=key.digest) for key in requests
        }


@cache
def checked() -> CheckReport:
    """The report of a folder in which a plan got worse, one is new, one is gone and one request can't be used."""
    with TemporaryDirectory() as place:
        folder = Path(place)

        def write(name: str, **changes: Any) -> None:
            (folder / f"{name}.plan.yaml").write_text(yaml.safe_dump({**TRAINED, **changes}))

        write("worse")
        write("gone", workload={**TRAINED["workload"], "seq_len": 2048})
        update_folder(folder, Here())
        write("worse", workload={**TRAINED["workload"], "seq_len": 8192})
        write("new", workload={**TRAINED["workload"], "seq_len": 1024})
        write("unusable", objective="none")
        (folder / "gone.plan.yaml").unlink()
        report = check_folder(folder, Here())
    assert {plan.name.split(".")[0] for plan in report.plans} == {"gone", "new", "unusable", "worse"}
    assert len([finding for plan in report.plans for finding in plan.findings]) >= 4
    return dataclasses.replace(report, folder="plans")


def with_names(report: CheckReport, name: str) -> CheckReport:
    """The report with this name in front of every text that is not ours alone: walks all fields, those to come, too."""
    changed: CheckReport = _renamed(report, name)
    # A CI server tells test cases apart by name.
    plans = tuple(dataclasses.replace(plan, name=f"{plan.name}{index}") for index, plan in enumerate(changed.plans))
    return dataclasses.replace(changed, plans=plans)


def _renamed(value: Any, name: str) -> Any:
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return f"{name}{value}" if value else value
    if isinstance(value, tuple):
        return tuple(_renamed(item, name) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.name not in FIXED]
        return dataclasses.replace(value, **{field: _renamed(getattr(value, field), name) for field in fields})
    if isinstance(value, dict):
        # Figures have names of ours; changes of inputs are texts.
        return {_renamed(key, name) if " -> " in key else key: item for key, item in value.items()}
    return value


def spelled(text: str) -> str:
    """Return a text as a reader is to see it, in the words of this test: each hidden character as Python would write it."""
    return HIDDEN_IN_LINE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def read_junit(report: CheckReport, text: str) -> None:
    root = ET.fromstring(text.encode("utf-8"))
    check_junit(root)
    own = [spelled(plan.name).replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff") for plan in report.plans]
    assert [case.get("name") for case in root.iter("testcase")] == own


def read_sarif(report: CheckReport, text: str) -> None:
    text.encode("utf-8")
    log = json.loads(text)
    check_sarif(log)
    found = [result["message"]["text"] for result in log["runs"][0]["results"]]
    assert found == [spelled(str(finding)) for plan in report.plans for finding in plan.findings]


def read_github(report: CheckReport, text: str) -> None:
    text.encode("utf-8")
    found = commands(text)
    findings = [(plan, finding) for plan in report.plans for finding in plan.findings]
    assert len(text.splitlines()) == text.count("\n") == len(found) == len(findings)
    for command, (plan, finding) in zip(found, findings, strict=True):
        assert command.name in ("notice", "warning", "error")
        assert set(command.properties) == {"file", "line", "title"}
        # The runner trims properties' names, not their values.
        assert command.properties["file"] == spelled(report.path_of(plan))
        assert command.data == "\n".join(spelled(line) for line in str(finding).split("\n"))


def read_markdown(report: CheckReport, text: str) -> None:
    text.encode("utf-8")
    assert _structure(text) == _structure(FORMATS["markdown"](with_names(checked(), GOOD)))
    cells = [_shown(token) for token in _tokens(text) if token.type == "inline"]
    for plan in report.plans:
        assert spelled(plan.name).strip() in [cell.strip() for cell in cells]
        for finding in plan.findings:
            assert any(spelled(finding.message).strip() in cell for cell in cells)


READERS: dict[str, Callable[[CheckReport, str], None]] = {
    "github": read_github,
    "junit": read_junit,
    "markdown": read_markdown,
    "sarif": read_sarif,
}


def test_every_format_is_attacked() -> None:
    assert set(FORMATS) == set(READERS)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@example("::set-output name=x::y\n::set-output name=x::y\n")
@example("a|b`c``|\x01\ud800")
@given(name=names)
def test_every_format_reads_back(name: str) -> None:
    report = with_names(checked(), name)
    for format_name, write in FORMATS.items():
        READERS[format_name](report, write(report))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@example("::set-output name=x::y")
@example("[/x]")
@given(name=names)
def test_the_page_is_only_shown(name: str) -> None:
    out = io.StringIO()
    print_check(with_names(checked(), name), width=80, to=out)
    check_lines(out.getvalue())


def _tokens(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def _structure(text: str) -> list[str]:
    """Kinds of the page's blocks, and of what stands in lines: all but plain text and code, which names are shown as."""
    found = []
    for token in _tokens(text):
        found.append(token.type)
        found += [child.type for child in token.children or () if not _is_text(child)]
    return found


def _is_text(token: Token) -> bool:
    return token.type in ("text", "code_inline") or (token.type == "html_inline" and token.content in ("<code>", "</code>"))


def _shown(inline: Token) -> str:
    return "".join(child.content for child in inline.children or () if child.type in ("text", "code_inline"))
