"""The makespan of a pipeline program on equal ranks whose sends take nothing, many times faster than its whole timeline.

`costmodels.pipeline.timeline.simulate` gives the same figure, to the bit (a test compares them); searches ask for hundreds.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from functools import lru_cache

from meshwright.costmodels.pipeline.build import build
from meshwright.costmodels.pipeline.program import Action, PassKind, Schedule

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
