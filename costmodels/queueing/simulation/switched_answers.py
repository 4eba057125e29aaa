"""The phase of answers of a worker that switches layouts: caches come from the host, and requests decode."""

from __future__ import annotations

import numpy as np

from meshwright.costmodels.queueing.simulation.engine_state import (
    NOBODY,
    FloatArray,
    IntArray,
    RecordArray,
    admit,
    compiled,
    leave,
    start_decoding,
)
from meshwright.costmodels.queueing.simulation.missed_targets import Promise, count_late_starts
from meshwright.costmodels.queueing.simulation.step_forming import PEAK
from meshwright.costmodels.queueing.simulation.switched_state import (
    DECODING_S,
    HELD,
    STAGED,
    Half,
    Staged,
    Switching,
    complete,
    is_over,
    send,
)


@compiled
def answer(
    decode: Half,
    switching: Switching,
    promise: Promise,
    requests: RecordArray,
    staged: Staged,
    counters: IntArray,
    totals: FloatArray,
    now: float,
) -> float:
    """Answer every request whose caches the host holds, in the order in which they came there; returns when that is done.

    Caches come up one request after another, as soon as the devices have room for all its tokens and a slot a place: that
    with the fewest requests.
    """
    slots = decode.slots
    taken, left, turn, running = 0, counters[STAGED], 0, 0
    loading_slot, loaded_s = NOBODY, now
    while True:
        for slot in range(len(slots)):
            if slots[slot].in_flight == 1 and slots[slot].ready_s <= now:
                ended = _end_answer_step(decode, promise, requests, counters, slot)
                left -= ended
                running -= ended
        count_late_starts(requests, counters, promise, now)
        if left == 0 or is_over(counters, promise):
            return now
        if loading_slot != NOBODY and loaded_s <= now:
            admit(requests, slots, decode.lists.queue, loading_slot, staged.request[taken - 1])
            loading_slot = NOBODY
        if loading_slot == NOBODY and taken < counters[STAGED]:
            request = staged.request[taken]
            tokens = requests[request].prompt + requests[request].answer
            slot = _emptiest(slots, decode.limits.sequences)
            if slot != NOBODY and counters[HELD] + tokens <= decode.limits.kv_tokens:
                counters[HELD] += tokens
                taken += 1
                running += 1
                counters[PEAK] = max(counters[PEAK], running)
                loading_slot, loaded_s = slot, now + requests[request].prompt * switching.in_token_s
                if loaded_s <= now:
                    continue
        if decode.stages.free_s[0] <= now:
            slot = _start_answer_step(decode, requests, counters, totals, turn, now)
            if slot != NOBODY:
                turn = (slot + 1) % len(slots)
                continue
        now = _next_of_answers(decode, loaded_s if loading_slot != NOBODY else np.inf, now)


@compiled
def _emptiest(slots: RecordArray, sequences: int) -> int:
    """The slot with the fewest requests, if it has a place left."""
    best = 0
    for slot in range(len(slots)):
        if slots[slot].running < slots[best].running:
            best = slot
    return best if slots[best].running < sequences else NOBODY


@compiled
def _next_of_answers(decode: Half, loaded_s: float, now: float) -> float:
    """When a step or a transfer ends, or the first stage is free for an idle slot with requests."""
    following = loaded_s
    for slot in range(len(decode.slots)):
        if decode.slots[slot].in_flight == 1:
            following = min(following, decode.slots[slot].ready_s)
        elif decode.slots[slot].running > 0 and decode.stages.free_s[0] > now:
            following = min(following, decode.stages.free_s[0])
    return following


@compiled
def _start_answer_step(
    decode: Half, requests: RecordArray, counters: IntArray, totals: FloatArray, turn: int, now: float
) -> int:
    """Form a step for the first idle slot, from ``turn`` on, that has requests; returns the slot or NOBODY."""
    slots, lists, stages = decode.slots, decode.lists, decode.stages
    for k in range(len(slots)):
        slot = (turn + k) % len(slots)
        if slots[slot].in_flight == 1 or slots[slot].running == 0:
            continue
        while slots[slot].queue_length > 0:
            request = lists.queue[slot, slots[slot].queue_first]
            slots[slot].queue_first = (slots[slot].queue_first + 1) % lists.queue.shape[1]
            slots[slot].queue_length -= 1
            start_decoding(requests, slots, lists.ends, slot, request, requests[request].answer - 1)
        for kind in range(len(stages.attention_s)):
            stages.attention_s[kind] = 0.0
        decoding = slots[slot].decoding
        slots[slot].kv_sum += decoding
        send(decode, slot, decoding, 0, counters, now)
        totals[DECODING_S] += decoding * (slots[slot].ready_s - now)
        return slot
    return NOBODY


@compiled
def _end_answer_step(decode: Half, promise: Promise, requests: RecordArray, counters: IntArray, slot: int) -> int:
    """Give every request of a slot its token; returns how many are answered."""
    slots, ends = decode.slots, decode.lists.ends
    slots[slot].in_flight = 0
    slots[slot].rounds += 1
    column = slots[slot].rounds % ends.shape[1]
    ended = 0
    while ends[slot, column] != NOBODY:
        request = ends[slot, column]
        counters[HELD] -= requests[request].prompt + requests[request].answer
        leave(requests, slots, ends, slot, request)
        complete(requests, promise, counters, request, slots[slot].ready_s)
        ended += 1
    return ended
