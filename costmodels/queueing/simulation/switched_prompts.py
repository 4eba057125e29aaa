"""The phase of prompts of a worker that switches layouts: steps of prompts, whose caches go to the host."""

from __future__ import annotations

import numpy as np

from meshwright.costmodels.queueing.simulation.engine_state import (
    NOBODY,
    FloatArray,
    IntArray,
    RecordArray,
    admit,
    busiest,
    compiled,
    leave,
)
from meshwright.costmodels.queueing.simulation.missed_targets import Promise, count_late_starts
from meshwright.costmodels.queueing.simulation.step_forming import KNOWN, NEXT_NEW, take_chunk
from meshwright.costmodels.queueing.simulation.switched_state import (
    BUFFERED,
    HELD,
    LINK_FREE_S,
    SENT,
    STAGED,
    Half,
    PhaseLimits,
    Staged,
    Switching,
    complete,
    is_over,
    send,
)


@compiled
def compute_prompts(
    prefill: Half,
    decode: Half,
    switching: Switching,
    promise: Promise,
    requests: RecordArray,
    admitted_s: FloatArray,
    staged: Staged,
    counters: IntArray,
    totals: FloatArray,
    now: float,
) -> float:
    """Compute prompts until none waits or host memory has no room for the next, and all their caches are there; returns when.

    While the host has no prompt yet the phase waits for one.
    """
    slots, turn = prefill.slots, 0
    while True:
        for slot in range(len(slots)):
            if slots[slot].in_flight == 1 and slots[slot].ready_s <= now:
                _end_prompt_step(prefill, decode, switching, promise, requests, staged, counters, totals, slot)
        while counters[SENT] < counters[STAGED] and staged.ready_s[counters[SENT]] <= now:
            counters[HELD] -= requests[staged.request[counters[SENT]]].prompt
            counters[SENT] += 1
        count_late_starts(requests, counters, promise, now)
        if is_over(counters, promise):
            return now
        if prefill.stages.free_s[0] <= now:
            slot = _start_prompt_step(prefill, switching, requests, admitted_s, counters, turn, now)
            if slot != NOBODY:
                turn = (slot + 1) % len(slots)
                continue
        following = _next_of_prompts(prefill, requests, staged, counters, now)
        if np.isinf(following):
            return now
        now = following


@compiled
def _next_of_prompts(prefill: Half, requests: RecordArray, staged: Staged, counters: IntArray, now: float) -> float:
    """When a step or a transfer ends, the first stage is free for an idle slot, or a prompt arrives; never once the phase has
    nothing under way and something to answer."""
    following, idle, busy = np.inf, False, counters[SENT] < counters[STAGED]
    if busy:
        following = staged.ready_s[counters[SENT]]
    for slot in range(len(prefill.slots)):
        if prefill.slots[slot].in_flight == 1:
            following, busy = min(following, prefill.slots[slot].ready_s), True
        else:
            idle = True
    if idle and prefill.stages.free_s[0] > now:
        following = min(following, prefill.stages.free_s[0])
    upcoming = counters[NEXT_NEW]
    if (busy or counters[STAGED] == 0) and upcoming < counters[KNOWN] and requests[upcoming].arrival_s > now:
        following = min(following, requests[upcoming].arrival_s)
    return following


@compiled
def _start_prompt_step(
    prefill: Half,
    switching: Switching,
    requests: RecordArray,
    admitted_s: FloatArray,
    counters: IntArray,
    turn: int,
    now: float,
) -> int:
    """Form a step of prompts for the first idle slot, from ``turn`` on, that has any; returns the slot or NOBODY."""
    slots, lists, stages = prefill.slots, prefill.lists, prefill.stages
    for k in range(len(slots)):
        slot = (turn + k) % len(slots)
        if slots[slot].in_flight == 1:
            continue
        slots[slot].n_finishing = 0
        for kind in range(len(stages.attention_s)):
            stages.attention_s[kind] = 0.0
        taken = 0
        while taken < prefill.limits.step_tokens:
            if slots[slot].queue_length == 0:
                request = counters[NEXT_NEW]
                if not _may_start(prefill.limits, switching, requests, slots, slot, counters, now):
                    break
                counters[NEXT_NEW] += 1
                counters[HELD] += requests[request].prompt
                counters[BUFFERED] += _buffered_tokens(requests, request)
                admitted_s[request] = now
                admit(requests, slots, lists.queue, slot, request)
            budget = prefill.limits.step_tokens - taken
            taken += take_chunk(prefill.tables, requests, slots, lists, slot, stages.attention_s, budget)
        if taken > 0:
            send(prefill, slot, 0, taken, counters, now)
            return slot
    return NOBODY


@compiled
def _may_start(
    limits: PhaseLimits,
    switching: Switching,
    requests: RecordArray,
    slots: RecordArray,
    slot: int,
    counters: IntArray,
    now: float,
) -> bool:
    """Return True if the next prompt has arrived, and slot, devices and host have room for it."""
    request = counters[NEXT_NEW]
    if request >= counters[KNOWN] or requests[request].arrival_s > now or slots[slot].running >= limits.sequences:
        return False
    in_host = counters[BUFFERED] + _buffered_tokens(requests, request) <= switching.buffer_tokens
    return in_host and counters[HELD] + requests[request].prompt <= limits.kv_tokens  # type: ignore[no-any-return]


@compiled
def _buffered_tokens(requests: RecordArray, request: int) -> int:
    """Tokens that a prompt takes in host memory: none where its first token is the whole answer."""
    return requests[request].prompt if requests[request].answer > 1 else 0


@compiled
def _end_prompt_step(
    prefill: Half,
    decode: Half,
    switching: Switching,
    promise: Promise,
    requests: RecordArray,
    staged: Staged,
    counters: IntArray,
    totals: FloatArray,
    slot: int,
) -> None:
    """Give the prompts that the step completes their first token, and send their caches to the host, one after another."""
    slots = prefill.slots
    slots[slot].in_flight = 0
    now = slots[slot].ready_s
    for i in range(slots[slot].n_finishing):
        request = prefill.lists.finishing[slot, i]
        requests[request].first_s = now
        requests[request].busy_s = busiest(prefill.stages) + busiest(decode.stages)
        leave(requests, slots, prefill.lists.ends, slot, request)
        if requests[request].answer == 1:
            counters[HELD] -= requests[request].prompt
            complete(requests, promise, counters, request, now)
            continue
        totals[LINK_FREE_S] = max(totals[LINK_FREE_S], now) + requests[request].prompt * switching.out_token_s
        staged.request[counters[STAGED]] = request
        staged.ready_s[counters[STAGED]] = totals[LINK_FREE_S]
        counters[STAGED] += 1
