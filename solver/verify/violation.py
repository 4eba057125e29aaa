"""Violation: one rule that a plan breaks, where, and in what numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto


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
