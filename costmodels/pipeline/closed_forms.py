"""Closed forms of bubble, step time and memory of schedules: what the search asks thousands of times.

They hold for ranks of equal speed; each is in the file of its schedule, and tests compare it with the schedule's program.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from meshwright.costmodels.errors import InvalidInputError
from meshwright.costmodels.model.dims import SliceShares
from meshwright.costmodels.pipeline.placement import build, chunks_per_rank, valid_size
from meshwright.costmodels.pipeline.program import Action, PassKind, Schedule
from meshwright.costmodels.pipeline.schedules.table import TRAITS
from meshwright.costmodels.pipeline.timeline import Durations, simulate
from meshwright.costmodels.pipeline.traits import PassShares, PassTimes, PipelineSize, TokenSlices, WholeSequences


def one_f_one_b_step_s(stage_s: Sequence[float], n_microbatches: int) -> float:
    """Time of 1F1B on stages that take ``stage_s`` a micro-batch, forward and backward, without sending.

    ``sum t + (m - 1) max t`` (Alpa, OSDI'22, equation 2; design section 2, level 3). Exact for equal stages, and an upper
    bound for stages whose backward is the same multiple of their forward. Where that ratio differs, as between stages that
    recompute and stages that don't, the program can be slower, since the longest forward and the longest backward are then
    on different stages; it never exceeds ``sum t + (m - 1) (max forward + max backward)``.
    """
    if not stage_s or n_microbatches < 1:
        raise InvalidInputError("bad pipeline", given=(len(stage_s), n_microbatches), allowed="1 or more stages, micro-batches")
    return sum(stage_s) + (n_microbatches - 1) * max(stage_s)


def bubble_s(
    schedule: Schedule,
    n_ranks: int,
    n_microbatches: int,
    *,
    forward_s: float,
    input_s: float,
    weight_s: float,
    overlapped: float = 1.0,
    n_chunks: int = 2,
) -> float:
    """Idle time of the rank that waits most, within a step, in seconds; `costmodels.pipeline.timeline.Timeline.bubble_s`.

    Durations are those of one micro-batch on one part of the model, as in `Durations`: with two chunks a rank, half of the
    rank's; under schedules of token slices those of one slice, all being equal. By closed form where one is exact, else by
    running the program. Raises InvalidInputError as `build`.
    """
    size = valid_size(schedule, n_ranks, n_microbatches, n_chunks)
    times = PassTimes(forward_s, input_s, weight_s, overlapped)
    closed_s = TRAITS[schedule].bubble_s(size, times)
    return _program_bubble_s(schedule, size, times) if closed_s is None else closed_s


@lru_cache(maxsize=4096)
def _program_bubble_s(schedule: Schedule, size: PipelineSize, times: PassTimes) -> float:
    program = build(schedule, size.n_ranks, size.n_microbatches, n_chunks=size.n_chunks)
    durations = Durations.equal(
        program.n_positions,
        forward_s=times.forward_s,
        input_s=times.input_s,
        weight_s=times.weight_s,
        overlapped=times.overlapped,
    )
    return simulate(program, durations).bubble_s


def peak_in_flight(
    schedule: Schedule, n_ranks: int, n_microbatches: int, *, n_chunks: int = 2, n_slices: int = 2
) -> tuple[float, ...]:
    """Most micro-batches whose activations each rank holds; `costmodels.pipeline.program.Program.peak_in_flight`.

    The greatest of them is exact; other ranks of the V schedules may hold less when micro-batches are few. Token slices are
    equal (`costmodels.pipeline.held_tokens` takes any). Raises InvalidInputError as `build`.
    """
    size = valid_size(schedule, n_ranks, n_microbatches, n_chunks)
    match TRAITS[schedule].sequences:
        case TokenSlices(held_tokens=held_tokens):
            return tuple(held / n_slices for held in held_tokens(n_ranks, n_microbatches, (1,) * n_slices))
        case WholeSequences(peak_in_flight=of_rank):
            return tuple(of_rank(rank, size) for rank in range(n_ranks))


# The makespan of a pipeline program on equal ranks whose sends take nothing, many times faster than its whole timeline.
#
# `costmodels.pipeline.timeline.simulate` gives the same figure, to the bit (a test compares them); searches ask for hundreds.

PROGRAMS_KEPT = 64
"""Programs that are kept written down: each is asked about once for each recompute mode. One of 64 ranks takes 2 MB."""

_KINDS = (PassKind.FORWARD, PassKind.INPUT, PassKind.WEIGHT, PassKind.BACKWARD)

_NOT_YET = -1.0


@dataclass(frozen=True, slots=True)
class _Written:
    """A program as numbers: for each rank, of its actions one after another their kinds, up to two results that each needs, the
    one that it gives, and 1 where a slot ends behind it.

    Results are numbered: forwards of each micro-batch at each position, then the same of input gradients, then one that is
    always there and one that nobody needs.
    """

    n_results: int
    kinds: tuple[bytes, ...]
    first_needs: tuple[array[int], ...]
    second_needs: tuple[array[int], ...]
    gives: tuple[array[int], ...]
    ends: tuple[bytes, ...]


@lru_cache(maxsize=PROGRAMS_KEPT)
def _written(schedule: Schedule, n_ranks: int, n_microbatches: int) -> _Written:
    program = build(schedule, n_ranks, n_microbatches)
    n_positions = program.n_positions
    n = n_microbatches * n_positions
    there, unread = 2 * n, 2 * n + 1

    def results(action: Action) -> tuple[int, int, int]:
        """The two results that an action needs, and the one that it gives."""
        place = action.microbatch * n_positions + action.position
        if action.kind is PassKind.FORWARD:
            return place - 1 if action.position else there, there, place
        if action.kind is PassKind.WEIGHT:
            return n + place, there, unread
        return n + place + 1 if action.position < n_positions - 1 else there, place, n + place

    kinds, needs, ends = [], [], []
    for order in program.orders:
        kinds.append(bytes(_KINDS.index(action.kind) for slot in order for action in slot))
        needs.append([array("l", each) for each in zip(*(results(action) for slot in order for action in slot), strict=True)])
        ends.append(bytes(i == len(slot) - 1 for slot in order for i in range(len(slot))))
    first, second, gives = zip(*needs, strict=True)
    return _Written(2 * n + 2, tuple(kinds), first, second, gives, tuple(ends))


def makespan_s(
    schedule: Schedule, n_ranks: int, n_microbatches: int, *, forward_s: float, input_s: float, weight_s: float
) -> float:
    """From the first start to the last end over all ranks, where a pass of a micro-batch takes so long at every position."""
    program = _written(schedule, n_ranks, n_microbatches)
    takes_s = (forward_s, input_s, weight_s, input_s + weight_s)
    done_s = [_NOT_YET] * program.n_results
    done_s[-2] = 0.0
    free_s, reached = [0.0] * n_ranks, [0] * n_ranks
    waiting: dict[int, int] = {}
    ready = deque(range(n_ranks))
    while ready:
        rank = ready.popleft()
        kinds, first, second = program.kinds[rank], program.first_needs[rank], program.second_needs[rank]
        gives, ends = program.gives[rank], program.ends[rank]
        begin, now_s = reached[rank], free_s[rank]
        while begin < len(kinds):
            start_s, slot_s, at = now_s, 0.0, begin
            while True:
                one_s, other_s = done_s[first[at]], done_s[second[at]]
                if one_s < 0.0 or other_s < 0.0:
                    break
                start_s = max(start_s, one_s, other_s)
                slot_s += takes_s[kinds[at]]
                at += 1
                if ends[at - 1]:
                    break
            if one_s < 0.0 or other_s < 0.0:
                waiting[first[at] if one_s < 0.0 else second[at]] = rank
                break
            now_s = start_s + slot_s
            for result in gives[begin:at]:
                done_s[result] = now_s
                if result in waiting:
                    ready.append(waiting.pop(result))
            begin = at
        reached[rank], free_s[rank] = begin, now_s
    assert not waiting, "the order of a schedule can't wait for itself"
    return max(free_s)


# The time that a step waits for its pipeline, as a multiple of the wait of 1F1B: the one figure that the search needs.
#
# A step of m micro-batches on p equal ranks, each t a micro-batch, takes ``m t + ratio (p - 1) t`` from its first start to its
# last end: 1F1B has the ratio 1, interleaving 1/v, zero-bubble schedules less, schedules that save memory more. Unlike the
# bubble of the zero-bubble papers (`costmodels.pipeline.timeline.Timeline.bubble_s`) it counts the wait for the first
# micro-batch, because a step ends when all ranks are done.

_STEADY_ROUNDS = (2, 4)
"""Micro-batches a rank from which on every further one adds the same time (compared with programs in the tests)."""


def fills(schedule: Schedule, n_ranks: int, n_microbatches: int, n_chunks: int = 1) -> bool:
    """Return True if a schedule of whole sequences is defined here and has the micro-batches to reach its steady state. Ratios
    hold there."""
    sequences = TRAITS[schedule].sequences
    return isinstance(sequences, WholeSequences) and sequences.fills(PipelineSize(n_ranks, n_microbatches, n_chunks))


def waiting_ratio(schedule: Schedule, n_ranks: int, n_microbatches: int, shares: PassShares, *, n_chunks: int = 1) -> float:
    """Return the wait of ``n_ranks`` equal ranks in a step over the ``(p - 1) t`` of 1F1B.

    By the closed form of the schedule's traits, else by its event program, extended over further micro-batches, which all
    take the same time. Raises InvalidInputError where `fills` says no.
    """
    sequences = TRAITS[schedule].sequences
    if not isinstance(sequences, WholeSequences) or not fills(schedule, n_ranks, n_microbatches, n_chunks):
        given = f"{schedule.value}, {n_ranks} ranks, {n_chunks} chunks, {n_microbatches} micro-batches"
        raise InvalidInputError(
            "the schedule can't fill this pipeline", given=given, allowed="see meshwright.costmodels.pipeline.fills"
        )
    closed = sequences.waiting_ratio(PipelineSize(n_ranks, n_microbatches, n_chunks), shares)
    return _program_ratio(schedule, n_ranks, n_microbatches, shares) if closed is None else closed


def paired_share(schedule: Schedule, n_ranks: int, n_microbatches: int, *, n_chunks: int = 2) -> float:
    """Return the least part of a rank's forwards, over ranks, that run beside a backward of another micro-batch: all but those
    that fill the pipeline and drain it, which are as many in any step that fills it.

    A schedule that does not pair passes itself may be run so (Megatron-LM's combined 1F1B): all forwards of a rank but those
    before its first backward then pair with one.
    """
    alone, all_of_round = _unpaired(schedule, n_ranks, n_chunks)
    return max(0.0, 1.0 - alone / (all_of_round * n_microbatches / (2 * n_ranks)))


@lru_cache(maxsize=4096)
def _unpaired(schedule: Schedule, n_ranks: int, n_chunks: int) -> tuple[int, int]:
    """Most forwards of a rank that no backward runs beside, and all of a rank, with two micro-batches a rank."""
    if n_ranks == 1:
        return 1, 2
    program = build(schedule, n_ranks, 2 * n_ranks, n_chunks=n_chunks)
    forwards, alone = [], []
    for order in program.orders:
        kinds = [{action.kind for action in slot} for slot in order]
        forwards.append(sum(PassKind.FORWARD in each for each in kinds))
        begun = next(i for i, each in enumerate(kinds) if each != {PassKind.FORWARD})
        alone.append(sum(each == {PassKind.FORWARD} for each in kinds) if TRAITS[schedule].pairs_passes else begun)
    return max(alone), max(forwards)


def slices_waiting_ratio(schedule: Schedule, n_ranks: int, n_microbatches: int, shares: SliceShares) -> float:
    """`waiting_ratio` of a schedule of token slices; at least `SliceShares.longest`."""
    sequences = TRAITS[schedule].sequences
    assert isinstance(sequences, TokenSlices)
    return sequences.waiting_ratio(n_ranks, n_microbatches, shares)


def _program_ratio(schedule: Schedule, n_ranks: int, n_microbatches: int, shares: PassShares) -> float:
    early, late = (rounds * n_ranks for rounds in _STEADY_ROUNDS)
    if n_microbatches <= late:
        return _program_wait(schedule, n_ranks, n_microbatches, shares) / (n_ranks - 1)
    at_early, at_late = (_program_wait(schedule, n_ranks, m, shares) for m in (early, late))
    each = (at_late - at_early) / (late - early)
    return (at_late + each * (n_microbatches - late)) / (n_ranks - 1)


@lru_cache(maxsize=4096)
def _program_wait(schedule: Schedule, n_ranks: int, n_microbatches: int, shares: PassShares) -> float:
    """Makespan beyond ``m t`` of the event program, in units of t."""
    valid_size(schedule, n_ranks, n_microbatches)
    # A rank of a schedule with two paths runs half of the micro-batches on each of its two parts.
    chunks = chunks_per_rank(schedule)
    takes = makespan_s(
        schedule,
        n_ranks,
        n_microbatches,
        forward_s=shares.forward / chunks,
        input_s=shares.input / chunks,
        weight_s=shares.weight / chunks,
    )
    return max(0.0, takes - n_microbatches)
