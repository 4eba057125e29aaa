"""Comparing a plan with its locked one, by policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from meshwright.app.regression.cause import Comparison, cause_of, fix_of
from meshwright.app.regression.inputs import changes
from meshwright.app.regression.locked_plan import LockedPlan, Shortfall
from meshwright.app.regression.policy import Action, Policy
from meshwright.app.regression.report import Finding, FindingRule, PlanCheck, Severity, Verdict
from meshwright.app.regression.structure_diff import structure_changes
from meshwright.app.text.figures import amount, gib, percent, seconds, significant
from meshwright.solver.answer.plan import Plan

SLO_CONSTRAINTS = ("slo.", "p95_", "requests_per_s", "utilisation")
"""The first letters of constraint names that come from targets and load, not from what the devices can hold."""

LOCKED_PRECISION = 1e-4
"""Two products of locked figures, of six digits each, are one number within this."""

SEVERITIES = {Action.WARN: Severity.WARNING, Action.FAIL: Severity.ERROR}


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A figure that may get worse by a relative tolerance: its rule, in words, how it is shown, which way is better."""

    name: str
    rule: FindingRule
    words: str
    shown: Callable[[float], str]
    higher_is_better: bool = False

    def tolerance(self, policy: Policy) -> float:
        """Return the relative amount by which the figure may get worse."""
        return {
            FindingRule.THROUGHPUT: policy.throughput_tolerance,
            FindingRule.LATENCY: policy.latency_tolerance,
            FindingRule.COST: policy.cost_tolerance,
        }[self.rule]


FIGURES = (
    ComparedFigure("tokens_per_s", FindingRule.THROUGHPUT, "tokens/s", significant, higher_is_better=True),
    ComparedFigure("step_time_s", FindingRule.LATENCY, "step time", seconds),
    ComparedFigure("ttft_p95_s", FindingRule.LATENCY, "P95 TTFT", seconds),
    ComparedFigure("tpot_p95_s", FindingRule.LATENCY, "P95 TPOT", seconds),
    ComparedFigure("cost_per_million_tokens", FindingRule.COST, "cost per million tokens", lambda usd: f"{usd:.3g} USD"),
)


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan of now and its entry for the lock."""

    plan: Plan
    entry: LockedPlan


def compare(name: str, was: LockedPlan, planned: Planned, policy: Policy, *, accept: str) -> PlanCheck:
    """Return the check of a locked plan; ``accept`` is the command that would lock the plan of now."""
    now = planned.entry
    changed = changes(was.inputs, now.inputs)
    given = Comparison(was, now, planned.plan, changed, accept)
    # What stands in an entry edited by hand may be anything: there is nothing to compare with.
    findings = _graded(given, policy) if was.is_sealed else [_edited(accept)]
    differs = _without_seal(was) != _without_seal(now)
    return PlanCheck(name, _verdict(findings, differs=differs), tuple(findings), changed, now.digest, was.figures, now.figures)


def _graded(given: Comparison, policy: Policy) -> list[Finding]:
    """Findings with cause and fix, the gravest first."""
    findings = [_explained(finding, given) for finding in _findings(given, policy)]
    return sorted(findings, key=lambda finding: list(Severity).index(finding.severity), reverse=True)


def _without_seal(entry: LockedPlan) -> tuple[object, ...]:
    return (entry.inputs, entry.feasible, entry.figures, entry.shortfall, entry.structure)


def _verdict(findings: list[Finding], *, differs: bool) -> Verdict:
    severities = {finding.severity for finding in findings}
    if any(finding.rule is FindingRule.EDITED for finding in findings):
        return Verdict.EDITED
    for severity, verdict in (
        (Severity.ERROR, Verdict.WORSE),
        (Severity.WARNING, Verdict.WARNED),
        (Severity.NOTE, Verdict.BETTER),
    ):
        if severity in severities:
            return verdict
    return Verdict.CHANGED if differs else Verdict.SAME


def _explained(finding: Finding, given: Comparison) -> Finding:
    if finding.severity is Severity.NOTE:
        return finding
    return Finding(finding.rule, finding.severity, finding.message, cause_of(finding.rule, given), fix_of(finding.rule, given))


def _findings(given: Comparison, policy: Policy) -> list[Finding]:
    was, now = given.was, given.now
    found: list[Finding] = []
    if was.feasible and not now.feasible:
        assert now.shortfall is not None
        return [_lost(now.shortfall), *_floors(now, policy)]
    if now.feasible and not was.feasible:
        found.append(Finding(FindingRule.FEASIBILITY, Severity.NOTE, "a plan fits where none did"))
    if now.feasible and was.feasible:
        found += _figure_findings(was, now, policy)
        found += _device_findings(was, now, policy)
        found += _structure_findings(was, now, policy)
    return [*found, *_gap_findings(was, now, policy), *_floors(now, policy)]


def _lost(shortfall: Shortfall) -> Finding:
    words = shortfall.constraint.replace("_", " ")
    numbers = f"{words} needs {amount(shortfall.need, shortfall.unit)}, has {amount(shortfall.have, shortfall.unit)}"
    if shortfall.constraint.startswith(SLO_CONSTRAINTS):
        return Finding(FindingRule.SLO, Severity.ERROR, f"the SLO is not met any more: {numbers}")
    return Finding(FindingRule.FEASIBILITY, Severity.ERROR, f"no plan fits any more: {numbers}")


def _figure_findings(was: LockedPlan, now: LockedPlan, policy: Policy) -> list[Finding]:
    same_work = _same_work(was, now)
    findings = [
        _figure_finding(figure, was.figures.get(figure.name), now.figures.get(figure.name), policy)
        for figure in FIGURES
        if not (same_work and figure.name == "step_time_s")
    ]
    return [finding for finding in findings if finding is not None]


def _same_work(was: LockedPlan, now: LockedPlan) -> bool:
    """Return True if a training step has as many tokens as before: its time then says the same as throughput."""
    tokens = [entry.figures["tokens_per_s"] * entry.figures.get("step_time_s", 0.0) for entry in (was, now)]
    return math.isclose(*tokens, rel_tol=LOCKED_PRECISION)


def _figure_finding(figure: ComparedFigure, was: float | None, now: float | None, policy: Policy) -> Finding | None:
    if was is None and now is None:
        return None
    if was is None or now is None:
        message = f"{figure.words} is {'not known any more' if now is None else 'known now'}"
        return Finding(figure.rule, Severity.WARNING if now is None else Severity.NOTE, message)
    worse_by = relative_loss(was, now, higher_is_better=figure.higher_is_better)
    tolerance = figure.tolerance(policy)
    if abs(worse_by) <= tolerance:
        return None
    numbers = f"{figure.shown(was)} -> {figure.shown(now)}"
    if worse_by < 0:
        return Finding(figure.rule, Severity.NOTE, f"{figure.words} {percent(-worse_by)} better: {numbers}")
    message = f"{figure.words} {percent(worse_by)} worse: {numbers}, {percent(tolerance)} is allowed"
    return Finding(figure.rule, Severity.ERROR, message)


def relative_loss(was: float, now: float, *, higher_is_better: bool) -> float:
    """By what share of the old figure the new one is worse; negative when it is better."""
    loss = was - now if higher_is_better else now - was
    return loss / was if was > 0 else float(loss > 0)


def _device_findings(was: LockedPlan, now: LockedPlan, policy: Policy) -> list[Finding]:
    before, after = round(was.figures["devices"]), round(now.figures["devices"])
    message = f"{before:,} -> {after:,}"
    if after < before:
        return [Finding(FindingRule.DEVICES, Severity.NOTE, f"fewer devices: {message}")]
    severity = SEVERITIES.get(policy.devices)
    return [Finding(FindingRule.DEVICES, severity, f"more devices: {message}")] if after > before and severity else []


def _structure_findings(was: LockedPlan, now: LockedPlan, policy: Policy) -> list[Finding]:
    severity = SEVERITIES.get(policy.structure)
    lines = structure_changes(was.structure, now.structure)
    return [Finding(FindingRule.STRUCTURE, severity, f"structure changed: {'; '.join(lines)}")] if lines and severity else []


def _gap_findings(was: LockedPlan, now: LockedPlan, policy: Policy) -> list[Finding]:
    before, after = was.figures.get("gap"), now.figures.get("gap")
    if before is None or after is None or after - before <= policy.gap_tolerance:
        return []
    message = (
        f"gap of the certificate {percent(before)} -> {percent(after)}, a rise of {percent(policy.gap_tolerance)} is allowed"
    )
    return [Finding(FindingRule.GAP, Severity.ERROR, message)]


def _floors(now: LockedPlan, policy: Policy) -> list[Finding]:
    headroom, floor = now.figures.get("memory_headroom_bytes"), policy.min_memory_headroom_bytes
    if headroom is None or headroom >= floor:
        return []
    return [Finding(FindingRule.MEMORY, Severity.ERROR, f"memory headroom {gib(headroom)} is under the floor of {gib(floor)}")]


def _edited(accept: str) -> Finding:
    return Finding(
        FindingRule.EDITED,
        Severity.ERROR,
        "the locked plan was edited by hand: its seal does not fit what it holds",
        "an entry of the lock holds what no run of Meshwright wrote there",
        f"take back the edit; or lock the plan of now: {accept}",
    )
