"""The findings of a check: records that every output format is made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import groupby, zip_longest
from pathlib import PurePosixPath

from meshwright.app.base.errors import EXIT_BAD_INPUT, EXIT_GOOD, EXIT_INTERNAL, EXIT_NO
from meshwright.app.regression.inputs import InputChange
from meshwright.app.regression.lock import Policy
from meshwright.app.regression.locked_plan import Structure
from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.units import STRICT_RECORD

REPORT_SCHEMA = "meshwright.check/1"


class FindingRule(StrEnum):
    """The rule of a finding: what was compared, or what was wrong with the request or the lock."""

    FEASIBILITY = "feasibility"
    SLO = "slo"
    THROUGHPUT = "throughput"
    LATENCY = "latency"
    COST = "cost"
    GAP = "gap"
    DEVICES = "devices"
    MEMORY = "memory"
    STRUCTURE = "structure"
    NEW = "new"
    MISSING = "missing"
    EDITED = "edited"
    INVALID = "invalid"
    FAILURE = "failure"


RULE_TEXTS = {
    FindingRule.FEASIBILITY: "A request that had a plan has none any more",
    FindingRule.SLO: "A plan that met its service level objective does not any more",
    FindingRule.THROUGHPUT: "Predicted throughput fell by more than the tolerance",
    FindingRule.LATENCY: "Predicted latency rose by more than the tolerance",
    FindingRule.COST: "Predicted cost rose by more than the tolerance",
    FindingRule.GAP: "The certificate's gap rose by more than the tolerance",
    FindingRule.DEVICES: "The plan needs more devices",
    FindingRule.MEMORY: "The plan leaves less memory free than the floor",
    FindingRule.STRUCTURE: "The plan's structure changed",
    FindingRule.NEW: "A request is not in the lock",
    FindingRule.MISSING: "A locked request is gone",
    FindingRule.EDITED: "An entry of the lock was edited by hand",
    FindingRule.INVALID: "A request or the lock can't be used",
    FindingRule.FAILURE: "Planning failed",
}


class Severity(StrEnum):
    """The effect of a finding on the check; ``note`` is for what got better."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Verdict(StrEnum):
    """The verdict on a plan, in one word."""

    SAME = "same"
    CHANGED = "changed"
    BETTER = "better"
    WARNED = "warned"
    WORSE = "worse"
    NEW = "new"
    MISSING = "missing"
    EDITED = "edited"
    INVALID = "invalid"
    FAILED = "failed"


MAX_FIGURES = 32
"""Figures of a plan in a check, four times those of this version: stored reports have those of others."""

MAX_FIGURE_NAME = 64
"""Characters of a figure's name."""

PASSING = frozenset({Verdict.SAME, Verdict.CHANGED, Verdict.BETTER, Verdict.WARNED})


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference that matters: what happened, why, and what would fix it, a line each."""

    __pydantic_config__ = STRICT_RECORD

    rule: FindingRule
    severity: Severity
    message: str
    cause: str = ""
    fix: str = ""

    def __str__(self) -> str:
        parts = [self.message, f"cause: {self.cause}" if self.cause else "", f"fix: {self.fix}" if self.fix else ""]
        return "; ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class PlanCheck:
    """A request and what became of its plan; ``was`` and ``now`` are its figures in the lock and as planned now."""

    __pydantic_config__ = STRICT_RECORD

    name: str
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    changed_inputs: tuple[InputChange, ...] = ()
    digest: str | None = None
    was: Mapping[str, float] | None = None
    now: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        for figures in (self.was, self.now):
            if figures is not None and len(figures) > MAX_FIGURES:
                allowed = f"at most {MAX_FIGURES}"
                raise InvalidInputError("a plan of a check has too many figures", given=len(figures), allowed=allowed)
            for name in figures or ():
                if not 1 <= len(name) <= MAX_FIGURE_NAME or not name.isprintable():
                    allowed = f"1 to {MAX_FIGURE_NAME} printable characters"
                    raise InvalidInputError("this is no name of a figure", given=name[:MAX_FIGURE_NAME], allowed=allowed)

    @property
    def grouped_findings(self) -> tuple[tuple[Finding, ...], ...]:
        """Findings in runs of one cause and one fix, so that a reader meets each once."""
        return tuple(tuple(run) for _, run in groupby(self.findings, key=lambda finding: (finding.cause, finding.fix)))

    @property
    def passed(self) -> bool:
        """True if this plan lets the check pass."""
        return self.verdict in PASSING


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All plans of a folder.

    accept              the command that makes the plans of now the locked ones
    counts              how many plans have each verdict
    meshwright_changes  changes of versions and calibrations, and how many plans each touches: shown whatever the verdict
    updated             the lock holds the plans of now
    """

    __pydantic_config__ = STRICT_RECORD

    folder: str
    exit_code: int
    policy: Policy
    accept: str
    plans: tuple[PlanCheck, ...]
    counts: Mapping[str, int]
    meshwright_changes: Mapping[str, int]
    updated: bool = False
    schema: str = REPORT_SCHEMA

    @property
    def passed(self) -> bool:
        """True if the check passes."""
        return self.exit_code == EXIT_GOOD

    def path_of(self, plan: PlanCheck) -> str:
        """Path of a plan's request, from where the check ran."""
        return (PurePosixPath(self.folder) / plan.name).as_posix()

    @property
    def summary(self) -> str:
        """The counts in a line: "4 same, 1 worse"."""
        return ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items()) or "no plans"


def report_of(folder: str, plans: tuple[PlanCheck, ...], policy: Policy, *, accept: str) -> CheckReport:
    """The report of these plans."""
    verdicts = Counter(plan.verdict for plan in plans)
    counts = {verdict.value: verdicts[verdict] for verdict in Verdict if verdicts[verdict]}
    changes = Counter(str(change) for plan in plans for change in plan.changed_inputs if change.is_of_meshwright)
    return CheckReport(folder, exit_code_of(plans), policy, accept, plans, counts, dict(sorted(changes.items())))


def exit_code_of(plans: tuple[PlanCheck, ...]) -> int:
    """Exit code for these plans: that of the gravest verdict."""
    verdicts = {plan.verdict for plan in plans}
    if Verdict.FAILED in verdicts:
        return EXIT_INTERNAL
    if Verdict.INVALID in verdicts:
        return EXIT_BAD_INPUT
    return EXIT_GOOD if verdicts <= PASSING else EXIT_NO


# The differences in structure of two plans, in words.


def structure_changes(was: Structure, now: Structure) -> tuple[str, ...]:
    """One line for each part that differs; of stages and shardings the first that does."""
    lines = list(layout_changes(was, now))
    for part in fields(Structure):
        before, after = getattr(was, part.name), getattr(now, part.name)
        if before != after and isinstance(before, tuple):
            lines.append(_list_change(part.name, before, after))
    return tuple(lines)


def layout_changes(was: Structure, now: Structure) -> tuple[str, ...]:
    """The lines of what the plan has one of: axes, schedule, micro-batch, serving layout."""
    lines = []
    for part in fields(Structure):
        before, after = getattr(was, part.name), getattr(now, part.name)
        if part.name == "choices":
            lines += _choice_changes(before or {}, after or {})
        elif before != after and not isinstance(before, tuple):
            lines.append(f"{part.name.replace('_', ' ')} {before or 'none'} -> {after or 'none'}")
    return tuple(lines)


def _choice_changes(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """A line for each choice that differs; one that is left out is as usual."""
    words = dict.fromkeys((*was, *now))
    before_after = [(word, was.get(word, "usual"), now.get(word, "usual")) for word in words]
    return [f"{word.replace('_', ' ')} {before} -> {after}" for word, before, after in before_after if before != after]


def _list_change(name: str, was: tuple[str, ...], now: tuple[str, ...]) -> str:
    if len(was) != len(now):
        return f"{len(was)} -> {len(now)} {name}"
    differ = [(i, a, b) for i, (a, b) in enumerate(zip_longest(was, now)) if a != b]
    first, before, after = differ[0]
    more = f" ({len(differ)} {name} differ)" if len(differ) > 1 else ""
    return f"{name.removesuffix('s')} {first}: {before} -> {after}{more}"
