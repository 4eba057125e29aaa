"""Comparing a plan with its locked one, by policy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from meshwright.app.base.figures import amount, gib, percent, seconds, significant
from meshwright.app.regression.inputs import InputChange, changes, shown
from meshwright.app.regression.lock import Action, Policy
from meshwright.app.regression.locked_plan import LockedPlan, Shortfall
from meshwright.app.regression.report import (
    Finding,
    FindingRule,
    PlanCheck,
    Severity,
    Verdict,
    layout_changes,
    structure_changes,
)
from meshwright.solver.answer.plan import Plan

# Why a plan got worse, in one line, and what would fix it: from the inputs that changed and where the plan's time goes.

SHOWN_CHANGES = 2
SHOWN_REMEDIES = 2


class Driver(Enum):
    """The figure that a plan got worse by; the patterns name inputs that can cause that, the likeliest first."""

    MEMORY = (
        r"device\.memory_bytes$|memory_reserve$",
        r"\.nodes$|devices_per_node$",
        r"^model\.(layers|dims)\.",
        r"^workload\.",
        r"^search\.",
    )
    COMMUNICATION = (
        r"\.(intra|inter)\.|oversubscription$",
        r"\.nodes$|devices_per_node$",
        r"^calibration\.collectives",
        r"^search\.",
        r"^model\.(layers|dims)\.",
    )
    COMPUTE = (
        r"^model\.(layers|dims)\.",
        r"\.nodes$|devices_per_node$",
        r"peak_flops|memory_bytes_per_s$",
        r"^workload\.",
        r"^calibration\.kernels",
        r"^search\.",
    )
    TARGET = (r"^slo\.", r"^workload\.", r"^model\.(layers|dims)\.", r"\.(intra|inter)\.", r"\.nodes$")
    PRICE = (r"price_per_hour$", r"\.nodes$", r"^model\.(layers|dims)\.")

    def rank(self, change: InputChange) -> tuple[int, int, str]:
        """Sorts changes: the likeliest cause first, names and order last."""
        patterns: tuple[str, ...] = self.value
        place = next((i for i, pattern in enumerate(patterns) if re.search(pattern, change.field)), len(patterns))
        return place, int(bool(re.search(r"(^model\.order|\.name|^cluster\.order)$", change.field))), change.field


COMMUNICATION_PARTS = frozenset({"tp_comm_s", "cp_comm_s", "pp_comm_s", "dp_comm_s", "ep_comm_s"})
PART_NAMES = {
    "compute_s": "compute",
    "recompute_s": "recompute",
    "tp_comm_s": "tp communication",
    "cp_comm_s": "cp communication",
    "ep_comm_s": "ep communication",
    "pp_comm_s": "pp communication",
    "dp_comm_s": "dp communication",
    "bubble_s": "bubble",
    "optimizer_s": "optimizer",
    "prefill_s": "prefill",
    "decode_step_s": "decode step",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A locked plan, the one of now, the inputs that changed between them, and how to accept the plan of now."""

    was: LockedPlan
    now: LockedPlan
    plan: Plan
    changes: tuple[InputChange, ...]
    accept: str


def cause_of(rule: FindingRule, given: Comparison) -> str:
    """The likeliest changed inputs, and what they did to the plan."""
    ranked = _ranked(rule, given)
    effects = "; ".join(_effects(given))
    if not ranked:
        return "; ".join(part for part in (_unexplained(given), effects) if part)
    named = ", ".join(str(change) for change in ranked[:SHOWN_CHANGES])
    more = len(ranked) - SHOWN_CHANGES
    inputs = f"{named} and {more} more" if more > 0 else named
    return f"{inputs}: {effects}" if effects else inputs


def fix_of(rule: FindingRule, given: Comparison) -> str:
    """Return the change that would make the plan as good as it was, and the way to accept it as it is."""
    options: list[str] = []
    if rule in (FindingRule.FEASIBILITY, FindingRule.SLO) and given.plan.reason is not None:
        options += given.plan.reason.remedies[:SHOWN_REMEDIES]
    if rule is FindingRule.MEMORY:
        options.append("raise cluster.memory_reserve, or lower min_memory_headroom_bytes in the policy")
    own = [change for change in _ranked(rule, given) if not change.is_of_meshwright]
    if own:
        options.append(_undo(own[0]))
    if rule is not FindingRule.MEMORY:
        options.append(f"if it is meant: {given.accept}")
    return "; or ".join(options)


def _undo(change: InputChange) -> str:
    if change.was is None:
        return f"remove {change.field}"
    return f"put {change.field} back to {shown(change.was)}"


def _ranked(rule: FindingRule, given: Comparison) -> list[InputChange]:
    return sorted(given.changes, key=_driver(rule, given).rank)


def _driver(rule: FindingRule, given: Comparison) -> Driver:
    shortfall = given.now.shortfall
    if rule is FindingRule.MEMORY or (shortfall is not None and "memory" in shortfall.constraint):
        return Driver.MEMORY
    if shortfall is not None or rule is FindingRule.SLO:
        return Driver.TARGET
    if rule is FindingRule.COST and any(change.field.endswith("price_per_hour") for change in given.changes):
        return Driver.PRICE
    part = _grown_most(given.was.times_s, given.now.times_s)
    return Driver.COMMUNICATION if part in COMMUNICATION_PARTS else Driver.COMPUTE


def _effects(given: Comparison) -> list[str]:
    was, now = given.was.times_s, given.now.times_s
    part = _grown_most(was, now)
    effects = []
    if part is not None:
        effects.append(f"{PART_NAMES.get(part, part)} {seconds(was.get(part, 0.0))} -> {seconds(now[part])}")
    if given.now.feasible and given.was.feasible:
        effects += layout_changes(given.was.structure, given.now.structure)[:1]
    return effects


def _grown_most(was: Mapping[str, float], now: Mapping[str, float]) -> str | None:
    """The part of the time that grew by most; None when none did, or one of the plans has no times."""
    grown = {name: now[name] - was.get(name, 0.0) for name in now} if was else {}
    part = max(sorted(grown), key=grown.__getitem__, default=None)
    return part if part is not None and grown[part] > 0 else None


def _unexplained(given: Comparison) -> str:
    if given.was.digest != given.now.digest:
        return "the request changed only in what no plan should depend on, as the sources of figures"
    return (
        "no input and no version changed: solver or cost models changed without a new version, or another build "
        "of Meshwright wrote the lock"
    )


SLO_CONSTRAINTS = ("slo.", "p95_", "requests_per_s", "utilisation")
"""The first letters of constraint names that come from targets and load, not from what the devices can hold."""

LOCKED_PRECISION = 1e-4
"""Two products of locked figures, of six digits each, are one number within this."""

SEVERITIES = {Action.WARN: Severity.WARNING, Action.FAIL: Severity.ERROR}


@dataclass(frozen=True, slots=True)
class FigureRule:
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
    FigureRule("tokens_per_s", FindingRule.THROUGHPUT, "tokens/s", significant, higher_is_better=True),
    FigureRule("step_time_s", FindingRule.LATENCY, "step time", seconds),
    FigureRule("ttft_p95_s", FindingRule.LATENCY, "P95 TTFT", seconds),
    FigureRule("tpot_p95_s", FindingRule.LATENCY, "P95 TPOT", seconds),
    FigureRule("cost_per_million_tokens", FindingRule.COST, "cost per million tokens", lambda usd: f"{usd:.3g} USD"),
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


def _figure_finding(figure: FigureRule, was: float | None, now: float | None, policy: Policy) -> Finding | None:
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
