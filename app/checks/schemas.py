"""The bodies and answers of the endpoints of checks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from meshwright.app.checks.repository import StoredCheck
from meshwright.app.errors import EXIT_GOOD
from meshwright.app.regression.report import CheckReport
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import STRICT_RECORD

ANSWER = ConfigDict(extra="forbid", frozen=True)
MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class NewCheck:
    """A report of ``meshwright check`` and the project whose history it joins."""

    __pydantic_config__ = STRICT_RECORD

    project: str
    report: CheckReport

    def __post_init__(self) -> None:
        if not 1 <= len(self.project) <= MAX_NAME or not self.project.isprintable():
            allowed = f"1 to {MAX_NAME} printable characters"
            raise InvalidInputError("this is no name of a project", given=self.project[:MAX_NAME], allowed=allowed)


class CheckItem(BaseModel):
    """A check in a list."""

    model_config = ANSWER

    id: str
    project: str
    created_at: datetime
    passed: bool
    exit_code: int
    folder: str
    counts: dict[str, int] = Field(description="How many plans have each verdict.")
    meshwright_changes: dict[str, int] = Field(description="Changes of versions and calibrations; how many plans each touches.")


class CheckPage(BaseModel):
    """A page of checks, newest first."""

    model_config = ANSWER

    checks: list[CheckItem]
    next_cursor: str | None = Field(description="Give it as 'cursor' to get the next page; null on the last one.")


class TrendPoint(BaseModel):
    """A plan as one check found it."""

    model_config = ANSWER

    check: str
    created_at: datetime
    verdict: str
    figures: dict[str, float] = Field(description="As planned then: tokens_per_s, memory_headroom_bytes and others.")
    findings: list[str]


class Trend(BaseModel):
    """The course of a plan over the checks of a project, newest first."""

    model_config = ANSWER

    project: str
    plan: str
    points: list[TrendPoint]
    next_cursor: str | None = Field(description="Give it as 'cursor' to get older points; null on the last page.")


def check_item(stored: StoredCheck) -> CheckItem:
    """A check without its plans."""
    report = json.loads(stored.report)
    return CheckItem(
        id=stored.id,
        project=stored.project,
        created_at=stored.created_at,
        passed=stored.exit_code == EXIT_GOOD,
        exit_code=stored.exit_code,
        folder=report["folder"],
        counts=report["counts"],
        meshwright_changes=report["meshwright_changes"],
    )


def trend_point(stored: StoredCheck, plan: str) -> TrendPoint | None:
    """Return the point that a check adds to the trend of a plan; None when it had no such plan."""
    found: Mapping[str, Any] | None
    found = next((item for item in json.loads(stored.report)["plans"] if item["name"] == plan), None)
    if found is None:
        return None
    messages = [finding["message"] for finding in found["findings"]]
    figures = found["now"] or {}
    return TrendPoint(
        check=stored.id, created_at=stored.created_at, verdict=found["verdict"], figures=figures, findings=messages
    )
