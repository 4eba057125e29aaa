"""The targets that a run is already sure to miss, so that it can end early."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.costmodels.queueing.simulation.engine_state import (
    DECODING,
    DONE,
    NOBODY,
    FloatArray,
    IntArray,
    Lists,
    RecordArray,
    compiled,
    leave,
    start_decoding,
    tokens_in_cache,
)
from meshwright.costmodels.queueing.simulation.step_forming import (
    ADMIT_RESERVED,
    ADMIT_UNTIL_FULL,
    COMPLETED,
    KNOWN,
    KV_USED,
    MISSED_TPOT,
    MISSED_TTFT,
    OVERDUE,
    RUNNING,
    Cell,
    SlotLimits,
    Tables,
    decode_attention_s,
    evict_until_round_fits,
    grid_cell,
    prompts_apart,
    take_prompts,
)


class Promise(NamedTuple):
    """Counted requests [first, end), their targets, and how many of them may miss each."""

    first: int
    end: int
    ttft_s: float
    tpot_s: float
    may_miss_ttft: int
    may_miss_tpot: int


@compiled
def count_late_starts(requests: RecordArray, counters: IntArray, promise: Promise, now: float) -> None:
    """Count the requests that have no first token in time, whether or not they have one now; each once, in order of arrival."""
    request = counters[OVERDUE]
    while request < counters[KNOWN] and request < promise.end and now - requests[request].arrival_s > promise.ttft_s:
        # A first token that has not come is nan, and not in time either.
        in_time = requests[request].first_s - requests[request].arrival_s <= promise.ttft_s
        if request >= promise.first and not in_time:
            counters[MISSED_TTFT] += 1
        request += 1
    counters[OVERDUE] = request


@compiled
def is_missed(counters: IntArray, promise: Promise) -> bool:
    """Return True if more requests have missed a target than may."""
    late_starts, slow = counters[MISSED_TTFT], counters[MISSED_TPOT]
    return late_starts > promise.may_miss_ttft or slow > promise.may_miss_tpot  # type: ignore[no-any-return]


@compiled
def is_sure_to_miss(requests: RecordArray, slots: RecordArray, counters: IntArray, promise: Promise, now: float) -> bool:
    """Return True if more requests miss the target per token than may. Counts those that have missed it, and those that will
    because they are decoding for too long."""
    missed = counters[MISSED_TPOT]
    for slot in range(len(slots)):
        request = slots[slot].newest
        while request != NOBODY:
            decoding_s = now - requests[request].first_s if requests[request].phase == DECODING else 0.0
            if promise.first <= request < promise.end and decoding_s > promise.tpot_s * (requests[request].answer - 1):
                missed += 1
            request = requests[request].older
    return missed > promise.may_miss_tpot  # type: ignore[no-any-return]


# A step of a batch as a whole: what it holds, how long a stage works on it, and the tokens that it gives out.


@compiled
def form_step(  # type: ignore[no-untyped-def]
    tables: Tables,
    limits: SlotLimits,
    requests: RecordArray,
    slots: RecordArray,
    lists: Lists,
    slot: int,
    counters: IntArray,
    evicted: IntArray,
    attention_s: FloatArray,
    now: float,
    prompts_wait: bool,
):
    """Take what a slot's next step holds: (sequences that decode, prompt tokens), both 0 where there is nothing to do.
    ``attention_s`` gets the time of prompts' attention by kind of stage; no prompt is taken where they wait."""
    if limits.admission == ADMIT_UNTIL_FULL:
        evict_until_round_fits(limits, requests, slots, lists.ends, slot, counters, evicted)
    slots[slot].n_finishing = 0
    for kind in range(len(attention_s)):
        attention_s[kind] = 0.0
    decoding = slots[slot].decoding
    room = limits.step_tokens - (0 if prompts_apart(limits) else decoding * tables.query_tokens)
    prompt_tokens = 0
    if not prompts_wait:
        prompt_tokens = take_prompts(tables, limits, requests, slots, lists, slot, counters, evicted, attention_s, now, room)
    if prompts_apart(limits) and prompt_tokens > 0:
        decoding = 0
    if decoding > 0:
        slots[slot].kv_sum += decoding
        if limits.admission == ADMIT_UNTIL_FULL:
            counters[KV_USED] += decoding
    slots[slot].decodes = 1 if decoding > 0 else 0
    return decoding, prompt_tokens


@compiled
def work_s(
    tables: Tables, slots: RecordArray, kind: int, slot: int, decoding: int, prompt_tokens: int, attention_s: float, cell: Cell
) -> float:
    """Time that a kind of stage works on the step that a slot has formed; ``cell`` is that of decode attention."""
    tokens, logits = prompt_tokens + decoding * tables.query_tokens, decoding + slots[slot].n_finishing
    step_s = tables.tokens_s[kind, tokens] + tables.logits_s[kind, logits] + attention_s
    if decoding > 0:
        step_s += decode_attention_s(tables, kind, decoding, cell)
    if prompt_tokens > 0:
        step_s = max(step_s + tables.prefill_launch_s[kind], tables.least_prompt_s[kind])
    return step_s  # type: ignore[no-any-return]


@compiled
def step_cell(tables: Tables, slots: RecordArray, slot: int, decoding: int):  # type: ignore[no-untyped-def]
    """Place in the table of decode attention of the step that a slot has formed; any where nobody decodes."""
    return grid_cell(tables.kv_grid, slots[slot].kv_sum / decoding) if decoding > 0 else (0, 0.0)


@compiled
def finish_step(
    requests: RecordArray,
    slots: RecordArray,
    finishing: IntArray,
    ends: IntArray,
    slot: int,
    counters: IntArray,
    limits: SlotLimits,
    promise: Promise,
    delay_s: float,
) -> None:
    """Give out the tokens of the step that leaves the pipeline."""
    slots[slot].in_flight = 0
    now = slots[slot].ready_s
    if slots[slot].decodes == 1:
        slots[slot].rounds += 1
        column = slots[slot].rounds % ends.shape[1]
        while ends[slot, column] != NOBODY:
            _complete(requests, slots, ends, slot, ends[slot, column], now, counters, limits, promise, delay_s)
    for i in range(slots[slot].n_finishing):
        request = finishing[slot, i]
        generated = requests[request].to_prefill - requests[request].prompt + 1
        if generated == 1:
            requests[request].first_s = now
            requests[request].busy_s = slots[slot].busy_s
        if generated == requests[request].output:
            _complete(requests, slots, ends, slot, request, now, counters, limits, promise, delay_s)
        else:
            start_decoding(requests, slots, ends, slot, request, requests[request].output - generated)


@compiled
def _complete(
    requests: RecordArray,
    slots: RecordArray,
    ends: IntArray,
    slot: int,
    request: int,
    now: float,
    counters: IntArray,
    limits: SlotLimits,
    promise: Promise,
    delay_s: float,
) -> None:
    """Answer a request; in a closed loop its client sends the next one."""
    answer, shared = requests[request].answer, requests[request].shared
    if limits.admission == ADMIT_RESERVED:
        counters[KV_USED] -= requests[request].prompt + answer - shared
    elif requests[request].phase == DECODING:
        counters[KV_USED] -= tokens_in_cache(requests, slots, slot, request) - shared
    else:
        counters[KV_USED] -= requests[request].to_prefill - shared
    leave(requests, slots, ends, slot, request)
    counters[RUNNING] -= 1
    requests[request].phase = DONE
    requests[request].last_s = now
    if promise.first <= request < promise.end:
        counters[COMPLETED] += 1
        if answer > 1 and (now - requests[request].first_s) / (answer - 1) > promise.tpot_s:
            counters[MISSED_TPOT] += 1
    if counters[KNOWN] < len(requests):
        requests[counters[KNOWN]].arrival_s = now + delay_s
        counters[KNOWN] += 1
