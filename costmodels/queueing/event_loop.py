"""The compiled core of the simulation: events of one replica, and how its engine forms and finishes steps."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
from numba import njit

from costmodels.queueing import coasting, engine_state, step_forming
from costmodels.queueing.coasting import coast
from costmodels.queueing.engine_state import (
    DECODING,
    DONE,
    NOBODY,
    FloatArray,
    IntArray,
    Lists,
    RecordArray,
    leave,
    start_decoding,
    tokens_in_cache,
)
from costmodels.queueing.step_forming import (
    ADMIT_RESERVED,
    ADMIT_UNTIL_FULL,
    COMPLETED,
    COUNTERS,
    EVICTED,
    EVICTIONS,
    KNOWN,
    KV_USED,
    MISSED_TPOT,
    MISSED_TTFT,
    NEXT_NEW,
    PEAK,
    PREFILL_ONLY,
    RUNNING,
    Limits,
    Promise,
    Tables,
    decode_attention_s,
    evict_until_round_fits,
    take_prompts,
)


def _source_digest() -> str:
    """Digest of every file whose code ends up in the compiled simulation."""
    files = sorted(Path(module.__file__) for module in (coasting, engine_state, step_forming) if module.__file__)
    return sha256(b"".join(file.read_bytes() for file in (*files, Path(__file__)))).hexdigest()


def _compiled(sources: str):  # type: ignore[no-untyped-def]
    """The simulation, kept on disk once compiled.

    Numba recompiles what is on disk only when the file of the function itself changes, but keeps variables of a closure in
    the key: with ``sources`` among them a change of any file counts.
    """

    @njit(cache=True)
    def run(tables, limits, promise, requests, slots, lists, known):  # type: ignore[no-untyped-def]
        if len(sources) == 0:
            raise ValueError("the digest is part of the key")
        return _run(tables, limits, promise, requests, slots, lists, known)

    return run


@njit()
def _run(  # type: ignore[no-untyped-def]
    tables: Tables,
    limits: Limits,
    promise: Promise,
    requests: RecordArray,
    slots: RecordArray,
    lists: Lists,
    known: int,
):
    """Run until every counted request is answered, or a target is sure to be missed.

    ``known`` requests have an arrival time; the others arrive each when another one completes. Returns (missed, duration,
    busy time of the busiest stage, waiting requests integrated over time, peak of running requests, steps, evictions).
    """
    stages = tables.tokens_s.shape[0]
    stage_free, busy, attention = np.zeros(stages), np.zeros(stages), np.zeros(stages)
    counters = np.zeros(COUNTERS, dtype=np.int64)
    counters[KNOWN] = known
    evicted = np.zeros(len(requests), dtype=np.int64)
    now, waiting_s, steps, turn, missed = 0.0, 0.0, 0, 0, False
    while True:
        for slot in range(stages):
            if slots[slot].in_flight == 1 and slots[slot].ready_s <= now:
                _finish_step(requests, slots, lists.finishing, lists.ends, slot, counters, limits, promise)
        if counters[MISSED_TTFT] > promise.may_miss_ttft or counters[MISSED_TPOT] > promise.may_miss_tpot:
            missed = True
            break
        if counters[COMPLETED] == promise.end - promise.first:
            break
        if stage_free[0] <= now:
            if stages == 1:
                coasted = coast(tables, limits, requests, slots, lists.ends, counters, evicted, now, stage_free, busy)
                if coasted > 0:
                    waiting_s += _waiting_time_until(requests, counters, now, stage_free[0])
                    steps += coasted
                    now = stage_free[0]
            slot = _start_any_step(
                tables, limits, requests, slots, lists, counters, evicted, attention, now, stage_free, busy, turn
            )
            if slot != NOBODY:
                steps += 1
                turn = (slot + 1) % stages
                continue
        following = _next_event(requests, slots, counters, stage_free[0], now)
        if np.isinf(following):
            now = following
            break
        waiting_s += _waiting_time_until(requests, counters, now, following)
        now = following
    return missed, now, busy.max(), waiting_s, counters[PEAK], steps, counters[EVICTIONS]


@njit()
def _waiting_time_until(requests: RecordArray, counters: IntArray, now: float, until: float) -> float:
    """Number of waiting requests, integrated from now to a later time in which nobody is admitted."""
    waiting = counters[EVICTED] + _arrived(requests, counters, now)
    total = waiting * (until - now)
    request = counters[NEXT_NEW] + _arrived(requests, counters, now)
    while request < counters[KNOWN] and requests[request].arrival_s < until:
        total += until - requests[request].arrival_s
        request += 1
    return total  # type: ignore[no-any-return]


@njit()
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


@njit()
def _arrived(requests: RecordArray, counters: IntArray, now: float) -> int:
    """Requests that have arrived and were never admitted."""
    first, end = counters[NEXT_NEW], counters[KNOWN]
    low, high = first, end
    while low < high:
        middle = (low + high) // 2
        if requests[middle].arrival_s <= now:
            low = middle + 1
        else:
            high = middle
    return low - first  # type: ignore[no-any-return]


@njit()
def _start_any_step(
    tables: Tables,
    limits: Limits,
    requests: RecordArray,
    slots: RecordArray,
    lists: Lists,
    counters: IntArray,
    evicted: IntArray,
    attention: FloatArray,
    now: float,
    stage_free: FloatArray,
    busy: FloatArray,
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
        attention[:] = 0.0
        decoding = slots[slot].decoding
        room = limits.step_tokens - (0 if limits.scheduling == PREFILL_ONLY else decoding)
        prompt_tokens = take_prompts(tables, limits, requests, slots, lists, slot, counters, evicted, attention, now, room)
        if limits.scheduling == PREFILL_ONLY and prompt_tokens > 0:
            decoding = 0
        if prompt_tokens + decoding > 0:
            if decoding > 0:
                slots[slot].kv_sum += decoding
                if limits.admission == ADMIT_UNTIL_FULL:
                    counters[KV_USED] += decoding
            slots[slot].decodes = 1 if decoding > 0 else 0
            slots[slot].in_flight = 1
            slots[slot].ready_s = _through_pipeline(
                tables, slots, slot, decoding, prompt_tokens, attention, now, stage_free, busy
            )
            slots[slot].busy_s = busy.max()
            return slot
    return NOBODY


@njit()
def _through_pipeline(
    tables: Tables,
    slots: RecordArray,
    slot: int,
    decoding: int,
    prompt_tokens: int,
    attention: FloatArray,
    now: float,
    stage_free: FloatArray,
    busy: FloatArray,
) -> float:
    """Let the step pass every stage as soon as it is free; returns when it leaves the last."""
    end = now
    logits = decoding + slots[slot].n_finishing
    for stage in range(len(stage_free)):
        work = tables.tokens_s[stage, prompt_tokens + decoding] + tables.logits_s[stage, logits] + attention[stage]
        if decoding > 0:
            work += decode_attention_s(tables, stage, decoding, slots[slot].kv_sum / decoding)
        if prompt_tokens > 0:
            work += tables.prefill_launch_s[stage]
        end = max(end, stage_free[stage]) + work
        stage_free[stage] = end
        busy[stage] += work
    return end


@njit()
def _finish_step(
    requests: RecordArray,
    slots: RecordArray,
    finishing: IntArray,
    ends: IntArray,
    slot: int,
    counters: IntArray,
    limits: Limits,
    promise: Promise,
) -> None:
    """Give out the tokens of the step that leaves the pipeline."""
    slots[slot].in_flight = 0
    now = slots[slot].ready_s
    if slots[slot].decodes == 1:
        slots[slot].rounds += 1
        column = slots[slot].rounds % ends.shape[1]
        while ends[slot, column] != NOBODY:
            _complete(requests, slots, ends, slot, ends[slot, column], now, counters, limits, promise)
    for i in range(slots[slot].n_finishing):
        request = finishing[slot, i]
        generated = requests[request].to_prefill - requests[request].prompt + 1
        if generated == 1:
            requests[request].first_s = now
            requests[request].busy_s = slots[slot].busy_s
            late = now - requests[request].arrival_s > promise.ttft_s
            if late and promise.first <= request < promise.end:
                counters[MISSED_TTFT] += 1
        if generated == requests[request].output:
            _complete(requests, slots, ends, slot, request, now, counters, limits, promise)
        else:
            start_decoding(requests, slots, ends, slot, request, requests[request].output - generated)


@njit()
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
) -> None:
    """Answer a request; in a closed loop its client sends the next one."""
    output = requests[request].output
    if limits.admission == ADMIT_RESERVED:
        counters[KV_USED] -= requests[request].prompt + output
    elif requests[request].phase == DECODING:
        counters[KV_USED] -= tokens_in_cache(requests, slots, slot, request)
    else:
        counters[KV_USED] -= requests[request].to_prefill
    leave(requests, slots, ends, slot, request)
    counters[RUNNING] -= 1
    requests[request].phase = DONE
    requests[request].last_s = now
    if promise.first <= request < promise.end:
        counters[COMPLETED] += 1
        if output > 1 and (now - requests[request].first_s) / (output - 1) > promise.tpot_s:
            counters[MISSED_TPOT] += 1
    if counters[KNOWN] < len(requests):
        requests[counters[KNOWN]].arrival_s = now
        counters[KNOWN] += 1


run = _compiled(_source_digest())
