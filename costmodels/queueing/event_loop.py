"""The compiled core of the simulation: events of one replica, and how its engine forms and finishes steps."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
from numba import njit

from costmodels.queueing import coasting, engine_state, pipeline_coasting, promises, step_forming
from costmodels.queueing.coasting import coast
from costmodels.queueing.engine_state import (
    DECODING,
    DONE,
    NOBODY,
    IntArray,
    Lists,
    RecordArray,
    Stages,
    busiest,
    compiled,
    leave,
    pass_stages,
    start_decoding,
    tokens_in_cache,
    worked_on_average,
)
from costmodels.queueing.pipeline_coasting import coast_round
from costmodels.queueing.promises import Promise, count_late_starts, is_missed, is_sure_to_miss
from costmodels.queueing.step_forming import (
    ADMIT_RESERVED,
    ADMIT_UNTIL_FULL,
    ARRIVED,
    COMPLETED,
    COUNTERS,
    EVICTED,
    EVICTIONS,
    KNOWN,
    KV_USED,
    MISSED_TPOT,
    NEXT_NEW,
    PEAK,
    RUNNING,
    Limits,
    Tables,
    decode_attention_s,
    evict_until_round_fits,
    prompts_apart,
    take_prompts,
)

_EVENTS_BETWEEN_LOOKS = 16
"""Least number of events between two looks at what running requests are sure to miss."""

_PARTS = (coasting, engine_state, pipeline_coasting, promises, step_forming)


def source_digest(*more: str) -> str:
    """Digest of every file whose code ends up in the compiled simulation, and of more of them."""
    files = sorted(Path(module.__file__) for module in _PARTS if module.__file__)
    return sha256(b"".join(file.read_bytes() for file in (*files, Path(__file__), *map(Path, more)))).hexdigest()


def _compiled(sources: str):  # type: ignore[no-untyped-def]
    """The simulation, kept on disk once compiled.

    Numba recompiles what is on disk only when the file of the function itself changes, but keeps variables of a closure in
    the key: with ``sources`` among them a change of any file counts.
    """

    @njit(cache=True)
    def run(tables, limits, promise, delay_s, requests, slots, lists, stages, known):  # type: ignore[no-untyped-def]
        if len(sources) == 0:
            raise ValueError("the digest is part of the key")
        counters = np.zeros(COUNTERS, dtype=np.int64)
        counters[KNOWN] = known
        evicted = np.zeros(len(requests), dtype=np.int64)
        return _run(tables, limits, promise, delay_s, requests, slots, lists, stages, counters, evicted)

    return run


@compiled
def _run(  # type: ignore[no-untyped-def]
    tables: Tables,
    limits: Limits,
    promise: Promise,
    delay_s: float,
    requests: RecordArray,
    slots: RecordArray,
    lists: Lists,
    stages: Stages,
    counters: IntArray,
    evicted: IntArray,
):
    """Run until every counted request is answered, or a target is sure to be missed.

    The first requests have an arrival time; the others arrive each ``delay_s`` after another one completes. Returns (missed,
    duration, busy time of the busiest stage and of a mean one, waiting requests over time, peak of running requests, steps,
    evictions).
    """
    now, waiting_s, steps, turn, missed, unseen = 0.0, 0.0, 0, 0, False, 0
    while True:
        for slot in range(len(slots)):
            if slots[slot].in_flight == 1 and slots[slot].ready_s <= now:
                _finish_step(requests, slots, lists.finishing, lists.ends, slot, counters, limits, promise, delay_s)
        count_late_starts(requests, counters, promise, now)
        # A look at every running request costs as much as so many events.
        unseen += 1
        if unseen > counters[RUNNING] + _EVENTS_BETWEEN_LOOKS and not np.isinf(promise.tpot_s):
            missed, unseen = is_sure_to_miss(requests, slots, counters, promise, now), 0
        if missed or is_missed(counters, promise):
            missed = True
            break
        if counters[COMPLETED] == promise.end - promise.first:
            break
        if stages.free_s[0] <= now:
            coasted, until = 0, now
            if len(slots) == 1:
                coasted = coast(tables, limits, requests, slots, lists.ends, counters, evicted, stages, now)
                until = stages.free_s[0] if coasted > 0 else now
            else:
                until, coasted, turn = coast_round(
                    tables, limits, requests, slots, lists.ends, counters, evicted, stages, now, turn
                )
            steps += coasted
            if until > now:
                waiting_s += _waiting_time_until(requests, counters, now, until)
                now = until
            if stages.free_s[0] <= now:
                slot = _start_any_step(tables, limits, requests, slots, lists, counters, evicted, stages, now, turn)
                if slot != NOBODY:
                    steps += 1
                    turn = (slot + 1) % len(slots)
                    continue
        following = _next_event(requests, slots, counters, stages.free_s[0], now)
        if np.isinf(following):
            now = following
            break
        waiting_s += _waiting_time_until(requests, counters, now, following)
        now = following
    worked_s = worked_on_average(stages, tables.kinds)
    return missed, now, busiest(stages), worked_s, waiting_s, counters[PEAK], steps, counters[EVICTIONS]


@compiled
def _waiting_time_until(requests: RecordArray, counters: IntArray, now: float, until: float) -> float:
    """Number of waiting requests, integrated from now to a later time in which nobody is admitted."""
    waiting = counters[EVICTED] + _arrived(requests, counters, now)
    total = waiting * (until - now)
    request = counters[NEXT_NEW] + _arrived(requests, counters, now)
    while request < counters[KNOWN] and requests[request].arrival_s < until:
        total += until - requests[request].arrival_s
        request += 1
    return total  # type: ignore[no-any-return]


@compiled
def _next_event(requests: RecordArray, slots: RecordArray, counters: IntArray, first_stage_free: float, now: float) -> float:
    """When the next step ends, or a step could start: the first stage is free and a slot idle, or a request arrives."""
    following = np.inf
    idle = False
    for slot in range(len(slots)):
        if slots[slot].in_flight == 1:
            following = min(following, slots[slot].ready_s)
        else:
            idle = True
    if idle:
        if first_stage_free > now:
            following = min(following, first_stage_free)
        else:
            upcoming = counters[NEXT_NEW] + _arrived(requests, counters, now)
            if upcoming < counters[KNOWN]:
                following = min(following, requests[upcoming].arrival_s)
    return following


@compiled
def _arrived(requests: RecordArray, counters: IntArray, now: float) -> int:
    """Requests that have arrived and were never admitted; asked for times that never go back."""
    while counters[ARRIVED] < counters[KNOWN] and requests[counters[ARRIVED]].arrival_s <= now:
        counters[ARRIVED] += 1
    return counters[ARRIVED] - counters[NEXT_NEW]  # type: ignore[no-any-return]


@compiled
def _start_any_step(
    tables: Tables,
    limits: Limits,
    requests: RecordArray,
    slots: RecordArray,
    lists: Lists,
    counters: IntArray,
    evicted: IntArray,
    stages: Stages,
    now: float,
    turn: int,
) -> int:
    """Form a step for the first idle slot, from ``turn`` on, that has something to do, and send it through the pipeline;
    returns the slot or NOBODY."""
    for k in range(len(slots)):
        slot = (turn + k) % len(slots)
        if slots[slot].in_flight == 1:
            continue
        if limits.admission == ADMIT_UNTIL_FULL:
            evict_until_round_fits(limits, requests, slots, lists.ends, slot, counters, evicted)
        slots[slot].n_finishing = 0
        for kind in range(len(stages.attention_s)):
            stages.attention_s[kind] = 0.0
        decoding = slots[slot].decoding
        room = limits.step_tokens - (0 if prompts_apart(limits) else decoding * tables.query_tokens)
        prompt_tokens = take_prompts(
            tables, limits, requests, slots, lists, slot, counters, evicted, stages.attention_s, now, room
        )
        if prompts_apart(limits) and prompt_tokens > 0:
            decoding = 0
        if prompt_tokens + decoding > 0:
            if decoding > 0:
                slots[slot].kv_sum += decoding
                if limits.admission == ADMIT_UNTIL_FULL:
                    counters[KV_USED] += decoding
            slots[slot].decodes = 1 if decoding > 0 else 0
            slots[slot].in_flight = 1
            slots[slot].ready_s = through_pipeline(tables, slots, stages, slot, decoding, prompt_tokens, now)
            slots[slot].busy_s = busiest(stages)
            return slot
    return NOBODY


@compiled
def through_pipeline(
    tables: Tables, slots: RecordArray, stages: Stages, slot: int, decoding: int, prompt_tokens: int, now: float
) -> float:
    """Send the slot's step through the pipeline; returns when it leaves the last stage."""
    logits = decoding + slots[slot].n_finishing
    tokens = prompt_tokens + decoding * tables.query_tokens
    for kind in range(len(stages.step_s)):
        step_s = tables.tokens_s[kind, tokens] + tables.logits_s[kind, logits] + stages.attention_s[kind]
        if decoding > 0:
            step_s += decode_attention_s(tables, kind, decoding, slots[slot].kv_sum / decoding)
        if prompt_tokens > 0:
            step_s = max(step_s + tables.prefill_launch_s[kind], tables.least_prompt_s[kind])
        stages.step_s[kind] = step_s
    return pass_stages(stages, tables.kinds, now)


@compiled
def _finish_step(
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


run = _compiled(source_digest())
