"""All that is said of a launch command: read, started, fitted, predicted, and compared with the best plan; and its document,
``meshwright.explanation/1``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from meshwright.app.base.records import to_document
from meshwright.app.launching.parts.flag import GivenFlag, Standing
from meshwright.app.requests.plan_documents import plan_document
from meshwright.app.requests.resolve import request_document
from meshwright.app.service.explaining.slow import MeasuredAnswer
from meshwright.solver.answer.plan import Plan
from meshwright.solver.answer.predicted import Reason
from meshwright.solver.problem.choices import Launcher
from meshwright.solver.problem.request import PlanRequest


class Verdict(StrEnum):
    """The answer to a launch command, in a word."""

    RUNS = "runs"
    """It starts, fits and keeps its targets."""
    MISSES = "misses"
    """It runs, and misses a target or does not keep up with the load."""
    DOES_NOT_FIT = "does not fit"
    """It runs out of memory."""
    DOES_NOT_START = "does not start"
    """The launcher refuses it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A flag that the better plan's command has otherwise; None where a command leaves it out."""

    flag: str
    given: str | None
    better: str | None


@dataclass(frozen=True, slots=True)
class Better:
    """The best plan that was found for the request, gradients beside the backward pass, and its command.

    gain   share of the command's own objective that it saves; None where the command has none
    """

    plan: Plan
    command: str
    gain: float | None
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to a launch command.

    command    its text, or that of the script around it
    problems   rules of the launcher that it breaks
    plan       the plan that it stands for, with figures at the asked load; None where it does not start, or of a server fit
    most       serving: the same at the highest rate that it keeps its targets at; None where it keeps them at none
    reason     why it does not fit, or misses
    better     the best plan of the launcher where it is better; ``searched`` says whether one was looked for
    open_request  what a better plan is searched for, where flags of the command alone decide a part of the request
    at_load    the request that the plan's figures are of: without targets, on what the command fills of the devices
    measured   what was measured, beside the plan's figures; None where nothing was
    not_counted  parts of the run that no figure counts: it takes more time and memory
    none_better  why no better command is searched for; nothing where one is
    """

    launcher: Launcher
    command: str
    request: PlanRequest
    given: tuple[GivenFlag, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...] = ()
    plan: Plan | None = None
    most: Plan | None = None
    reason: Reason | None = None
    searched: bool = False
    better: Better | None = None
    open_request: PlanRequest | None = None
    at_load: PlanRequest | None = None
    measured: MeasuredAnswer | None = None
    not_counted: tuple[str, ...] = ()
    none_better: str = ""

    @property
    def verdict(self) -> Verdict:
        """The answer in a word."""
        if self.problems:
            return Verdict.DOES_NOT_START
        if self.reason is None:
            return Verdict.RUNS
        return Verdict.DOES_NOT_FIT if self.reason.unit == "bytes" else Verdict.MISSES

    def with_better(self, better: Better | None) -> Explanation:
        """Return the explanation after the search for a better plan."""
        return replace(self, searched=True, better=better)


# Two commands of a launcher, flag by flag.


def differences(given: Sequence[GivenFlag], better: Sequence[GivenFlag]) -> tuple[Difference, ...]:
    """Return the flags that say something of a plan and that two commands have with other values, or one alone."""
    theirs, ours = _by_field(given), _by_field(better)
    return tuple(
        Difference(_name(theirs, ours, field), _value(theirs, field), _value(ours, field))
        for field in dict.fromkeys((*theirs, *ours))
        if _meaning(theirs, field) != _meaning(ours, field)
    )


def _by_field(flags: Sequence[GivenFlag]) -> Mapping[str, GivenFlag]:
    return {flag.field: flag for flag in flags if flag.standing is Standing.READ and flag.field not in _NAMES}


_NAMES = (
    "model",
    "config_file",
    "deepspeed_config",
    "deepspeed_file",
    "fsdp_config",
    "settings_file",
    "accelerate_file",
    "method",
    "estimator",
)
"""Fields that name things, whose keys are told one by one, and are no choice."""


def _name(theirs: Mapping[str, GivenFlag], ours: Mapping[str, GivenFlag], field: str) -> str:
    return (theirs.get(field) or ours[field]).name


def _value(flags: Mapping[str, GivenFlag], field: str) -> str | None:
    if field not in flags:
        return None
    return flags[field].value or "on"


def _meaning(flags: Mapping[str, GivenFlag], field: str) -> object:
    return flags[field].meaning if field in flags else None


EXPLANATION_SCHEMA = "meshwright.explanation/1"


def explanation_document(found: Explanation) -> dict[str, Any]:
    """Return the document of an explanation; its plans are plan documents without digests."""
    return {
        "schema": EXPLANATION_SCHEMA,
        "verdict": found.verdict.value,
        "launcher": found.launcher.value,
        "command": found.command,
        "flags": [
            {"flag": flag.name, "value": flag.value, "standing": flag.standing.value, "why": flag.why} for flag in found.given
        ],
        "notes": list(found.notes),
        "not_counted": list(found.not_counted),
        "problems": list(found.problems),
        "reason": None if found.reason is None else to_document(Reason, found.reason),
        "plan": _plan(found.plan),
        "most": _plan(found.most),
        "searched": found.searched,
        "better": None if found.better is None else _better(found.better),
        "request": request_document(found.request),
        "measured": None if found.measured is None else _measured(found.measured),
    }


def _measured(answer: MeasuredAnswer) -> dict[str, Any]:
    return {
        "as_predicted": answer.is_as_predicted,
        "compared": [
            {
                "given": each.text,
                "metric": each.metric.value,
                "measured": each.measured,
                "predicted": each.predicted,
                "low": each.low,
                "high": each.high,
            }
            for each in answer.compared
        ],
        "causes": [
            {
                "name": each.name,
                "what": each.what,
                "factor": each.factor,
                "figure": each.figure,
                "share": each.share,
                "explains": each.explains,
                "check": each.check,
            }
            for each in answer.causes
        ],
    }


def _better(better: Better) -> dict[str, Any]:
    return {
        "plan": _plan(better.plan),
        "command": better.command,
        "gain": better.gain,
        "differences": [{"flag": each.flag, "given": each.given, "better": each.better} for each in better.differences],
    }


def _plan(plan: Plan | None) -> dict[str, Any] | None:
    return None if plan is None else plan_document(plan)
