"""Pipeline schedules of training candidates: which ones a mesh can run, and how much each waits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from meshwright.costmodels.model.dims import BATCH, SEQ
from meshwright.costmodels.model.documents import PackedDocuments, flops_of_documents
from meshwright.costmodels.model.operators import OperatorKind
from meshwright.costmodels.pipeline import (
    TOKEN_SLICED,
    TRAITS,
    Backward,
    ChunkCount,
    PassShares,
    Schedule,
    ScheduleTraits,
    fills,
    n_copies,
    n_positions,
    waiting_ratio,
)
from meshwright.solver.blocks.recompute import operators_of
from meshwright.solver.problem.choices import Recompute
from meshwright.solver.problem.declared.recompute_modules import USUAL_MODULES
from meshwright.solver.problem.graph import ModelGraph
from meshwright.solver.problem.search import Search

_CANONICAL = (Schedule.ONE_F_ONE_B, *(schedule for schedule in Schedule if schedule is not Schedule.ONE_F_ONE_B))


@dataclass(frozen=True, slots=True)
class Pipelining:
    """A schedule, and into how many model chunks (virtual stages) it cuts each rank's part of the model.

    ``even`` asks for parts as equal as those of several chunks a rank, where each rank holds one (a preset's equal stages).
    ``slices`` are the tokens of each slice that a sequence passes in, empty where it passes whole. ``borders`` are the first
    layers of parts and the end where a launcher cuts the model by itself, empty where it does not.
    """

    schedule: Schedule = Schedule.ONE_F_ONE_B
    chunks: int = 1
    even: bool = False
    slices: tuple[int, ...] = ()
    borders: tuple[int, ...] = ()

    @property
    def sort_key(self) -> tuple[int, int, int]:
        """Canonical order among equals: 1F1B first."""
        return (_CANONICAL.index(self.schedule), self.chunks, self.n_slices)

    @property
    def traits(self) -> ScheduleTraits:
        """Traits of the schedule."""
        return TRAITS[self.schedule]

    @property
    def n_slices(self) -> int:
        """Parts that a sequence passes in."""
        return max(1, len(self.slices))

    @property
    def one_part_a_rank(self) -> bool:
        """True if each rank holds one part of the model."""
        return self.chunks == 1 and n_copies(self.schedule) == 1

    @property
    def any_borders(self) -> bool:
        """True if parts may have any borders."""
        return self.one_part_a_rank and not self.even and not self.borders

    @property
    def modes_by_stage(self) -> bool:
        """True if stages may differ in recompute mode: only where the wait does not depend on it."""
        return self.any_borders and self.traits.backward is Backward.WHOLE and self.schedule not in TOKEN_SLICED

    def of_some_layers(self, pp: int) -> Pipelining | None:
        """The same schedule where each part recomputes as many of its layers, parts being as equal as those of several chunks a
        rank; None for one whose wait depends on what is recomputed."""
        if self.traits.backward is not Backward.WHOLE or n_copies(self.schedule) > 1 or self.slices:
            return None
        return self if pp == 1 or self.chunks > 1 else replace(self, even=True)

    def n_parts(self, pp: int) -> int:
        """Parts that the model is cut in."""
        return n_positions(self.schedule, pp, self.chunks)


PLAIN = Pipelining()


def pipelinings(
    search: Search, expressible: frozenset[Schedule], *, pp: int, n_microbatches: int, n_layers: int
) -> Iterator[Pipelining]:
    """Schedules that ``pp`` ranks can run with so many micro-batches, in canonical order.

    Without a pipeline there is no schedule to choose, and its name is 1F1B. A schedule that is no better than another, as GPipe
    than 1F1B, takes part only where the other may not.
    """
    if pp == 1:
        yield PLAIN
        return
    allowed = [s for s in _CANONICAL if s in expressible and (not search.schedules or s in search.schedules)]
    for schedule in allowed:
        if TRAITS[schedule].no_better_than in allowed:
            continue
        for chunks in _chunks(schedule, search, n_layers // pp):
            choice = Pipelining(schedule, chunks)
            if choice.n_parts(pp) <= n_layers and fills(schedule, pp, n_microbatches, chunks):
                yield choice


def _chunks(schedule: Schedule, search: Search, most: int) -> Iterator[int]:
    if TRAITS[schedule].chunk_count is ChunkCount.OF_PATH:
        chunks = n_positions(schedule, 1)
        if chunks == 1 or not search.virtual_stages or chunks in search.virtual_stages:
            yield chunks
        return
    for chunks in range(2, most + 1):
        if not search.virtual_stages or chunks in search.virtual_stages:
            yield chunks


def pass_shares(
    model: ModelGraph,
    *,
    seq_len: int,
    recompute: Recompute,
    documents: PackedDocuments | None = None,
    modules: Collection[str] = USUAL_MODULES,
) -> PassShares:
    """Shares of forward, input and weight passes in a micro-batch's FLOPs; what is recomputed belongs to the input pass, under
    fine-grained recomputation what products and attention of ``modules`` are.

    A backward pass is two forward passes; that of an operator with weights is half for its input, half for its weights
    (multi-GPU lecture, "T_b = T_a + T_w").
    """
    sizes = {**model.dims, BATCH: 1, SEQ: seq_len}
    forward = weight = attention = light = 0.0
    for run in model.chain:
        block = model.block(run.block)
        run_again = frozenset[str]().union(*(operators_of(block, module) for module in modules))
        for operator in block.operators:
            flops = run.repeat * flops_of_documents(operator, sizes, documents)
            forward += flops
            attention += flops if operator.kind is OperatorKind.ATTENTION else 0.0
            if operator.kind is OperatorKind.MATMUL:
                weight += flops
            if operator.kind in (OperatorKind.MATMUL, OperatorKind.ATTENTION) and operator.name in run_again:
                light += flops
    again = {
        Recompute.NONE: 0.0,
        Recompute.FINE_GRAINED: light,
        Recompute.SELECTIVE: attention,
        Recompute.FULL: forward,
    }[recompute]
    total = 3.0 * forward + again
    return PassShares(forward / total, (2.0 * forward - weight + again) / total, weight / total)


def waiting(choice: Pipelining, *, pp: int, n_microbatches: int, shares: PassShares) -> float:
    """`costmodels.pipeline.waiting_ratio` of a choice; 1 without a pipeline."""
    if pp == 1:
        return 1.0
    return waiting_ratio(choice.schedule, pp, n_microbatches, shares, n_chunks=choice.chunks)


def least_waiting(choices: Iterable[Pipelining]) -> float:
    """Lower bound on `waiting` of every choice, whatever the shares: 0 for a split backward, which may leave no wait."""
    return min(
        0.0 if choice.traits.backward is Backward.SPLIT else 1.0 / (choice.chunks * choice.n_slices) for choice in choices
    )
