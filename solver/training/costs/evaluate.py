"""The costs of a fully decided training plan: time and memory of every stage, and of the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.costmodels.model.memory_law import MemoryLaw
from meshwright.costmodels.pipeline import held_passes, held_tokens, n_copies, peak_in_flight, positions_of_ranks
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.stages.longest import objective_s
from meshwright.solver.training.costs.stage_table import Sharding, StageTable
from meshwright.solver.training.space.candidates import Candidate

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StageSpan:
    """Layers first .. last of a part of the model, and its recompute mode.

    ``members`` are the part's layers, ascending, where it may leave out some of them: a stage of a model that branches. Layers
    from ``kept_from`` on are not recomputed, where that is not None.
    """

    first: int
    last: int
    recompute: Recompute
    members: tuple[int, ...] = ()
    kept_from: int | None = None

    @property
    def layers(self) -> slice | list[int]:
        """The layers as an index of arrays."""
        return list(self.members) if self.members else slice(self.first, self.last + 1)

    @property
    def numbers(self) -> Sequence[int]:
        """The layers, ascending."""
        return self.members or range(self.first, self.last + 1)

    def of_mode(self, modes: Sequence[Recompute]) -> tuple[int | IntArray, slice | list[int] | IntArray]:
        """The layers under their modes as an index of arrays [mode, layer]."""
        mode = modes.index(self.recompute)
        if self.kept_from is None:
            return mode, self.layers
        layers = np.arange(self.first, self.last + 1)
        return np.where(layers < self.kept_from, mode, modes.index(Recompute.NONE)), layers


@dataclass(frozen=True)
class Decision:
    """A fully decided plan: outer candidate, sharding of each distinct block, and the parts that the model is cut in.

    Where each rank holds one part, parts are stages; else `spans_of_rank` says which of them a rank holds.
    """

    candidate: Candidate
    sharding: Sharding
    spans: tuple[StageSpan, ...]

    def spans_of_rank(self, rank: int) -> tuple[StageSpan, ...]:
        """Parts of the model on a pipeline rank, in order of the model."""
        return tuple(self.spans[position] for position in positions(self.candidate)[rank])

    @property
    def n_copies(self) -> int:
        """Ranks that hold each part; a micro-batch passes one of them."""
        return n_copies(self.candidate.pipelining.schedule)


@dataclass(frozen=True)
class StageCost:
    """One pipeline rank of a decision. Times in seconds, memory in bytes on its fullest device.

    ``sends_s`` of the time is passing activations and gradients on; ``hidden_s`` more of it goes on beside compute.
    """

    time_s: float
    sends_s: float
    hidden_s: float
    extra_s: float
    in_flight: float
    static_bytes: float
    activation_bytes: float
    transient_bytes: float
    overhead_bytes: float
    capacity_bytes: float
    usable_bytes: float
    law: MemoryLaw
    host_bytes: float = 0.0
    host_capacity_bytes: float = math.inf
    nvme_bytes: float = 0.0
    nvme_capacity_bytes: float = math.inf

    @property
    def need_bytes(self) -> float:
        """Bytes of tensors at their most, those of activations and transients with the law's factors: neither what their
        allocator adds nor the framework's overhead is in it."""
        return self.static_bytes + self.activation_bytes + self.transient_bytes

    @property
    def device_bytes(self) -> float:
        """Memory of the fullest device, median."""
        return self.law.device_bytes(self.need_bytes, overhead_bytes=self.overhead_bytes)

    @property
    def fits(self) -> bool:
        """True if the stage fits its devices, and their share of host memory and drives."""
        return self.need_bytes <= self.capacity_bytes and self.fits_away

    @property
    def fits_away(self) -> bool:
        """True if host and drives hold what was moved there."""
        return self.host_bytes <= self.host_capacity_bytes and self.nvme_bytes <= self.nvme_capacity_bytes


@dataclass(frozen=True)
class DecisionCost:
    """All stages, and the time of a step."""

    stages: tuple[StageCost, ...]
    step_time_s: float

    @property
    def peak_bytes(self) -> float:
        """Memory in use on the fullest device, the framework's overhead included, median."""
        return max(stage.device_bytes for stage in self.stages)

    @property
    def fits(self) -> bool:
        """True if every stage fits its devices."""
        return all(stage.fits for stage in self.stages)


def positions(candidate: Candidate) -> tuple[tuple[int, ...], ...]:
    """Parts of the model on each pipeline rank."""
    return positions_of_ranks(candidate.pipelining.schedule, candidate.mesh.pp, candidate.pipelining.chunks)


def in_flight(candidate: Candidate) -> tuple[float, ...]:
    """Micro-batches whose activations each rank holds at once."""
    choice = candidate.pipelining
    if choice.slices:
        held, of_one = units_in_flight(candidate)
        return tuple(units / of_one for units in held)
    return peak_in_flight(choice.schedule, candidate.mesh.pp, candidate.n_microbatches, n_chunks=max(2, choice.chunks))


def units_in_flight(candidate: Candidate) -> tuple[tuple[int, ...], int]:
    """Return the whole units that each rank with one part holds at once, and the units of a micro-batch: one, or one a token
    slice."""
    choice, m = candidate.pipelining, candidate.n_microbatches
    if not choice.slices:
        return tuple(int(held) for held in in_flight(candidate)), 1
    return held_tokens(choice.schedule, candidate.mesh.pp, m, choice.slices), sum(choice.slices)


def held_by_part(candidate: Candidate) -> tuple[npt.NDArray[np.int64] | npt.NDArray[np.float64], ...]:
    """For each rank ``[moment, part]`` the passes of each of its parts that it holds at once, fractions where sequences pass in
    slices; see `held_passes`."""
    if candidate.pipelining.slices:
        return tuple(np.array([[held]]) for held in in_flight(candidate))
    if candidate.pipelining.one_part_a_rank:
        return tuple(np.array([[held]], np.int64) for held in in_flight(candidate))
    choice = candidate.pipelining
    return held_passes(choice.schedule, candidate.mesh.pp, candidate.n_microbatches, choice.chunks)


def evaluate_decision(decision: Decision, tables: Sequence[StageTable]) -> DecisionCost:
    """Cost of a decision; ``tables`` are those of its pipeline ranks, first to last."""
    candidate = decision.candidate
    held = held_by_part(candidate)
    stages = []
    done: list[int] = []
    for rank, table in enumerate(tables):
        spans = decision.spans_of_rank(rank)
        under = [span.of_mode(candidate.recompute) for span in spans]
        kept = [float(table.activation_bytes[layers].sum()) for layers in under]
        sends_s, beside_s = table.boundary_s, table.beside_s
        if table.dag is not None:
            mine = spans[0].numbers
            done += mine
            n_sent = max(1, table.dag.sent_after(done))
            sends_s, beside_s = sends_s * n_sent, beside_s * n_sent
            kept[0] += table.side_bytes * table.dag.held_sides(mine)
        passes_s = sum(float(table.time_s[layers].sum()) for layers in under)
        passes_s /= decision.n_copies
        hidden_s = min(beside_s, passes_s + sends_s)
        sends_s += beside_s - hidden_s
        stages.append(
            StageCost(
                time_s=passes_s + sends_s,
                sends_s=sends_s,
                hidden_s=hidden_s,
                extra_s=sum(float(table.extra_s[span.layers].sum()) for span in spans) + (table.step_s if rank else 0.0),
                in_flight=float(held[rank].sum(axis=1).max()) / candidate.pipelining.chunks,
                static_bytes=sum(float(table.static_bytes[span.layers].sum()) for span in spans),
                activation_bytes=float((held[rank] @ np.array(kept)).max()),
                transient_bytes=max(float(table.transient_bytes[layers].max()) for layers in under),
                overhead_bytes=table.parts.overhead_bytes,
                capacity_bytes=table.capacity_bytes,
                usable_bytes=table.usable_bytes,
                law=table.law,
                host_bytes=_host_bytes(decision, rank, table, held[rank]),
                host_capacity_bytes=table.parts.host_capacity_bytes,
                nvme_bytes=sum(float(table.parts.nvme_bytes[span.layers].sum()) for span in spans),
                nvme_capacity_bytes=table.parts.nvme_capacity_bytes,
            )
        )
    total = objective_s(
        [s.time_s for s in stages],
        [s.extra_s for s in stages],
        candidate.n_microbatches,
        waiting=tables[0].waiting,
        hidden_s=[s.hidden_s for s in stages],
    )
    return DecisionCost(tuple(stages), total)


def _host_bytes(
    decision: Decision, rank: int, table: StageTable, held: npt.NDArray[np.int64] | npt.NDArray[np.float64]
) -> float:
    """Return the bytes that a device of a rank has in host memory at most; ``held`` are passes of its parts at once, by
    moment."""
    if decision.candidate.offload.is_nothing:
        return 0.0
    spans, parts = decision.spans_of_rank(rank), table.parts
    modes = decision.candidate.recompute
    moved = [float(parts.host_activation_bytes[span.of_mode(modes)].sum()) for span in spans]
    static = sum(float(parts.host_static_bytes[span.layers].sum()) for span in spans)
    return static + float((held @ np.array(moved)).max())
