"""The page about checks leaves nothing out."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

from meshwright.app.regression.lock import Action, Policy
from meshwright.app.regression.locked_plan import LockedPlan
from meshwright.app.regression.report import PASSING, RULE_TEXTS, Finding, FindingRule, Severity, Verdict

PAGE = (Path(__file__).parents[3] / "docs" / "check.md").read_text(encoding="utf-8")
NAMED = {word for code in re.findall(r"`([^`\n]+)`", PAGE) for word in re.split(r"[^\w.-]+", code)}


def test_every_policy_field_and_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| `?([^|`]+)`? \|$", PAGE.split("## Policy")[1], re.MULTILINE))
    policy = Policy()
    assert {name: value.strip() for name, value in rows.items()} == {
        field.name: f"{value:g}" if isinstance(value := getattr(policy, field.name), float) else value.value
        for field in fields(Policy)
    }
    table = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[0]
    Policy(**tomllib.loads(table)["tool"]["meshwright"]["check"])


def test_every_verdict_rule_and_field() -> None:
    codes = dict(re.findall(r"^\| `(\w+)` \| .* \| (\d) \|$", PAGE.split("## Findings")[0], re.MULTILINE))
    assert set(codes) == {verdict.value for verdict in Verdict}
    assert {name for name, code in codes.items() if code == "0"} == {verdict.value for verdict in PASSING}
    assert {value.value for kind in (FindingRule, Severity, Action) for value in kind} <= NAMED
    assert {field.name for field in fields(LockedPlan)} | {"message", "cause", "fix", "severity"} <= NAMED
    assert {field.name for field in fields(Finding)} - {"rule"} <= NAMED
    assert set(RULE_TEXTS) == set(FindingRule)
