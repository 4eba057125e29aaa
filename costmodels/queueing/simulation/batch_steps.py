"""A step of a batch as a whole: what it holds, how long a stage works on it, and the tokens that it gives out."""

from __future__ import annotations

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
from meshwright.costmodels.queueing.simulation.missed_targets import Promise
from meshwright.costmodels.queueing.simulation.step_forming import (
    ADMIT_RESERVED,
    ADMIT_UNTIL_FULL,
    COMPLETED,
    KNOWN,
    KV_USED,
    MISSED_TPOT,
    RUNNING,
    Cell,
    Limits,
    Tables,
    decode_attention_s,
    evict_until_round_fits,
    grid_cell,
    prompts_apart,
    take_prompts,
)


@compiled
def form_step(  # type: ignore[no-untyped-def]
    tables: Tables,
    limits: Limits,
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
    limits: Limits,
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
    limits: Limits,
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
