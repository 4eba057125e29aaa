"""Violation: one rule that a plan breaks, where, and in what numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum


class Rule(StrEnum):
    """The rules, grouped as they are checked: a group is looked at only when the groups before it hold."""

    # What a plan must have before anything else can be said of it.
    NUMBERS = "numbers"
    KIND = "kind"
    ANSWER = "answer"
    CERTIFICATE = "certificate"
    REASON = "reason"
    # Layers, stages and devices.
    LAYERS = "layers"
    STAGES = "stages"
    AXES = "axes"
    DEVICES = "devices"
    BATCH = "batch"
    SEQUENCE = "sequence"
    ZERO = "zero"
    SHARDING = "sharding"
    DIVISIBILITY = "divisibility"
    TIED = "tied"
    SEARCH = "search"
    LAUNCHER = "launcher"
    # Memory.
    IN_FLIGHT = "in_flight"
    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    TRANSIENT = "transient"
    OVERHEAD = "overhead"
    KV_CACHE = "kv_cache"
    CAPACITY = "capacity"
    HOST_MEMORY = "host_memory"
    PEAK_MEMORY = "peak_memory"
    # Time and what follows from it.
    STAGE_TIME = "stage_time"
    STEP_TIME = "step_time"
    BREAKDOWN = "breakdown"
    TOKENS = "tokens"
    MFU = "mfu"
    COST = "cost"
    ENERGY = "energy"
    BANDS = "bands"
    FRONTIER = "frontier"
    UTILISATION = "utilisation"
    SLO = "slo"


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
