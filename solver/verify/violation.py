"""Violation: one rule that a plan breaks, where, and in what numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto

from meshwright.solver.answer.document import record_of
from meshwright.solver.answer.plan import Plan


class Subject(Enum):
    """The subject of a rule: a plan itself, or a figure that is predicted of it."""

    PLAN = auto()
    """Layers, devices and degrees, memory that suffices, and the settings of launchers."""
    FIGURE = auto()
    """A predicted figure: whether it follows from others, or meets a target. A launcher runs the plan all the same."""


class Rule(StrEnum):
    """The rules, grouped as they are checked: a group is looked at only when the groups before it hold.

    Each says what it judges as its ``subject``.
    """

    subject: Subject

    def __new__(cls, value: str, subject: Subject) -> Rule:
        """Return the rule of a name, with what it judges."""
        rule = str.__new__(cls, value)
        rule._value_, rule.subject = value, subject
        return rule

    # What a plan must have before anything else can be said of it.
    NUMBERS = "numbers", Subject.PLAN
    KIND = "kind", Subject.PLAN
    ANSWER = "answer", Subject.PLAN
    CERTIFICATE = "certificate", Subject.FIGURE
    REASON = "reason", Subject.PLAN
    # Layers, stages and devices.
    LAYERS = "layers", Subject.PLAN
    STAGES = "stages", Subject.PLAN
    AXES = "axes", Subject.PLAN
    DEVICES = "devices", Subject.PLAN
    BATCH = "batch", Subject.PLAN
    SEQUENCE = "sequence", Subject.PLAN
    ZERO = "zero", Subject.PLAN
    SHARDING = "sharding", Subject.PLAN
    DIVISIBILITY = "divisibility", Subject.PLAN
    TIED = "tied", Subject.PLAN
    SEARCH = "search", Subject.PLAN
    LAUNCHER = "launcher", Subject.PLAN
    # Memory.
    IN_FLIGHT = "in_flight", Subject.FIGURE
    WEIGHTS = "weights", Subject.FIGURE
    GRADIENTS = "gradients", Subject.FIGURE
    OPTIMIZER = "optimizer", Subject.FIGURE
    ACTIVATIONS = "activations", Subject.FIGURE
    TRANSIENT = "transient", Subject.FIGURE
    OVERHEAD = "overhead", Subject.FIGURE
    KV_CACHE = "kv_cache", Subject.FIGURE
    CAPACITY = "capacity", Subject.PLAN
    USABLE = "usable", Subject.FIGURE
    HOST_MEMORY = "host_memory", Subject.PLAN
    HOST_BYTES = "host_bytes", Subject.FIGURE
    RISK = "risk", Subject.FIGURE
    PEAK_MEMORY = "peak_memory", Subject.FIGURE
    # Time and what follows from it.
    STAGE_TIME = "stage_time", Subject.FIGURE
    STEP_TIME = "step_time", Subject.FIGURE
    BREAKDOWN = "breakdown", Subject.FIGURE
    TOKENS = "tokens", Subject.FIGURE
    MFU = "mfu", Subject.FIGURE
    COST = "cost", Subject.FIGURE
    ENERGY = "energy", Subject.FIGURE
    BANDS = "bands", Subject.FIGURE
    FRONTIER = "frontier", Subject.FIGURE
    UTILISATION = "utilisation", Subject.FIGURE
    SLO = "slo", Subject.FIGURE


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule; ``where`` names the part of the plan, ``message`` says what it has and what it should have.

    ``limit`` names the constraint of the request that the plan exceeds, as reasons name it; empty where what the plan says is
    wrong. An infeasible plan that was given exceeds the limit that its reason names.
    """

    rule: Rule
    where: str
    message: str
    limit: str = ""

    def __str__(self) -> str:
        return f"{self.rule.value} at {self.where}: {self.message}"


def placed_at(part: str, violations: Iterable[Violation]) -> Iterator[Violation]:
    """Violations of a part of a plan that were found as if it were the whole, named by their place in that part."""
    for violation in violations:
        yield replace(violation, where=violation.where.replace("plan.", f"{part}.", 1))


# Comparing floats, and the rule that no figure of a plan is NaN, infinite or negative.

RELATIVE = 1e-9
"""Agreement asked of two floats that are equal by definition. Adding n terms in another order changes a sum by at most
n x 2**-53 of it, that is 1e-11 for the 100,000 layers a graph may have; anything beyond 1e-9 is another formula."""


MAY_BE_NEGATIVE = (".learned_bytes", ".fragmentation_bytes")
"""Corrections by runs, which may have taken less than was counted."""


def agrees(value: float, expected: float) -> bool:
    """Return True if two figures are equal but for rounding."""
    return abs(value - expected) <= RELATIVE * max(abs(value), abs(expected))


def at_most(value: float, limit: float) -> bool:
    """Return True if ``value <= limit`` but for rounding."""
    return value <= limit + RELATIVE * max(abs(value), abs(limit))


def number_violations(plan: Plan) -> Iterator[Violation]:
    """Every figure of the plan that is NaN, infinite or negative (a bubble of rounding noise below zero aside)."""
    step_s = None if plan.predicted is None else plan.predicted.step_time_s
    noise = RELATIVE * (step_s or 0.0)
    for where, value in _figures(record_of(plan), "plan"):
        if not math.isfinite(value):
            yield Violation(Rule.NUMBERS, where, f"{value} is not a finite number")
        elif value < (-noise if where.startswith("plan.breakdown.") else 0.0) and not where.endswith(MAY_BE_NEGATIVE):
            yield Violation(Rule.NUMBERS, where, f"{value} is negative")


def _figures(value: object, where: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, int | float):
        yield where, float(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _figures(getattr(value, field.name), f"{where}.{field.name}")
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _figures(item, f"{where}[{index}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _figures(item, f"{where}.{key}")


# Broken rules that count against a plan: one that was given is not bound to what a search may choose, and an infeasible one
# exceeds the limit that it names; and whoever checks may ask about some subjects alone.


class SpaceRules(StrEnum):
    """The plans that must keep to the space of ``request.search``."""

    OF_SEARCHED_PLANS = "searched plans"
    OF_ALL_PLANS = "all plans"


class Counted:
    """The violations of a plan that count, and the limits of the request that it exceeds."""

    def __init__(self, plan: Plan, space_rules: SpaceRules, subjects: Collection[Subject], *, claims_no_bound: bool):
        self._plan = plan
        # A search always proves some bound; a plan of a kind that claims none where it was only predicted is free.
        given = claims_no_bound and plan.certificate.bound is None
        self._is_free = given and space_rules is SpaceRules.OF_SEARCHED_PLANS
        self._subjects = frozenset(subjects)
        self._exceeded: set[str] = set()

    def of(self, violations: Iterable[Violation]) -> tuple[Violation, ...]:
        """Those of the violations that count."""
        return tuple(violation for violation in violations if self._counts(violation))

    def unfounded_reason(self) -> Iterator[Violation]:
        """The reason of an infeasible plan names a limit that the plan exceeds."""
        reason = self._plan.reason
        if not self._plan.feasible and reason is not None and reason.constraint not in self._exceeded:
            exceeded = ", ".join(sorted(self._exceeded)) or "no limit"
            yield Violation(Rule.REASON, "plan.reason", f"{reason.constraint}, the plan exceeds {exceeded}")

    def _counts(self, violation: Violation) -> bool:
        if violation.limit and not self._plan.feasible:
            self._exceeded.add(violation.limit)
            return False
        if violation.rule.subject not in self._subjects:
            return False
        return not (self._is_free and violation.rule in (Rule.SEARCH, Rule.LAUNCHER))
