"""What a fully decided training plan costs: time and memory of every stage, and of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from solver.request import Recompute
from solver.stages.longest import objective_s
from solver.training.costs import Sharding, StageTable
from solver.training.space import Candidate


@dataclass(frozen=True, slots=True)
class StageSpan:
    """Layers first .. last of a stage, and its recompute mode."""

    first: int
    last: int
    recompute: Recompute


@dataclass(frozen=True)
class Decision:
    """A fully decided plan: outer candidate, sharding of each distinct block, and stages."""

    candidate: Candidate
    sharding: Sharding
    spans: tuple[StageSpan, ...]


@dataclass(frozen=True)
class StageCost:
    """One stage of a decision. Times in seconds, memory in bytes on its fullest device."""

    time_s: float
    extra_s: float
    in_flight: int
    static_bytes: float
    activation_bytes: float
    transient_bytes: float
    overhead_bytes: float
    capacity_bytes: float

    @property
    def need_bytes(self) -> float:
        """Memory the stage needs beside the framework's overhead."""
        return self.static_bytes + self.activation_bytes + self.transient_bytes

    @property
    def fits(self) -> bool:
        """Whether the stage fits its devices."""
        return self.need_bytes <= self.capacity_bytes


@dataclass(frozen=True)
class DecisionCost:
    """All stages, and the time of a step."""

    stages: tuple[StageCost, ...]
    step_time_s: float

    @property
    def peak_bytes(self) -> float:
        """Memory in use on the fullest device, the framework's overhead included."""
        return max(stage.need_bytes + stage.overhead_bytes for stage in self.stages)

    @property
    def fits(self) -> bool:
        """Whether every stage fits its devices."""
        return all(stage.fits for stage in self.stages)


def in_flight_1f1b(*, pp: int, position: int, n_microbatches: int) -> int:
    """Micro-batches whose activations stage ``position`` (from 0) holds at once under 1F1B: min(m, p - i)."""
    return min(n_microbatches, pp - position)


def evaluate_decision(decision: Decision, tables: Sequence[StageTable]) -> DecisionCost:
    """Cost of a decision; ``tables`` are those of its stage positions, first to last."""
    candidate = decision.candidate
    stages = []
    for position, (span, table) in enumerate(zip(decision.spans, tables, strict=True)):
        mode = candidate.recompute.index(span.recompute)
        layers = slice(span.first, span.last + 1)
        in_flight = in_flight_1f1b(pp=candidate.mesh.pp, position=position, n_microbatches=candidate.n_microbatches)
        stages.append(
            StageCost(
                time_s=float(table.time_s[mode, layers].sum()) + table.boundary_s,
                extra_s=float(table.extra_s[layers].sum()) + (table.step_s if position else 0.0),
                in_flight=in_flight,
                static_bytes=float(table.static_bytes[layers].sum()),
                activation_bytes=in_flight * float(table.activation_bytes[mode, layers].sum()),
                transient_bytes=float(table.transient_bytes[mode, layers].max()),
                overhead_bytes=table.parts.overhead_bytes,
                capacity_bytes=table.capacity_bytes,
            )
        )
    total = objective_s([s.time_s for s in stages], [s.extra_s for s in stages], candidate.n_microbatches)
    return DecisionCost(tuple(stages), total)
