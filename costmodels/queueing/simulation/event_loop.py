"""The compiled core of the simulation: events of one replica of one attention group."""

from __future__ import annotations

import numpy as np

from meshwright.costmodels.compiling import kept_compiled_whole
from meshwright.costmodels.queueing.simulation.coasting import coast, next_admission
from meshwright.costmodels.queueing.simulation.engine_state import (
    NOBODY,
    IntArray,
    Lists,
    RecordArray,
    Stages,
    busiest,
    compiled,
    pass_stages,
    worked_on_average,
)
from meshwright.costmodels.queueing.simulation.missed_targets import (
    Promise,
    count_late_starts,
    finish_step,
    form_step,
    is_missed,
    is_sure_to_miss,
    step_cell,
    work_s,
)
from meshwright.costmodels.queueing.simulation.step_forming import (
    ADMIT_UNTIL_FULL,
    ARRIVED,
    COMPLETED,
    EVICTED,
    EVICTIONS,
    KNOWN,
    KV_USED,
    NEXT_NEW,
    PEAK,
    RUNNING,
    SlotLimits,
    Tables,
    decode_attention_s,
    grid_cell,
)

# The same shortcut for pipelines: batches that only decode go round and round while nothing else can happen.


@compiled
def coast_round(  # type: ignore[no-untyped-def]
    tables: Tables,
    limits: SlotLimits,
    requests: RecordArray,
    slots: RecordArray,
    ends: IntArray,
    counters: IntArray,
    evicted: IntArray,
    stages: Stages,
    now: float,
    turn: int,
):
    """Let slots decode from now on as long as no prompt is under way, nobody can be admitted and nobody finishes. Only a
    shortcut: the steps are those that would be formed one by one.

    Returns (time reached, steps started, slot whose turn it is); steps may be in flight then, as before.
    """
    for slot in range(len(slots)):
        if slots[slot].queue_length > 0:
            return now, 0, turn
    upcoming_s = next_admission(limits, requests, slots, counters, evicted)
    if upcoming_s <= now:
        return now, 0, turn
    steps = 0
    while True:
        if stages.free_s[0] <= now:
            slot = _idle_slot(slots, turn)
            if slot != NOBODY:
                if limits.admission == ADMIT_UNTIL_FULL:
                    if counters[KV_USED] + slots[slot].decoding > limits.kv_tokens:
                        break
                    counters[KV_USED] += slots[slot].decoding
                _start_round(tables, slots, stages, slot, now)
                steps += 1
                turn = (slot + 1) % len(slots)
        following = _next_pipeline_event(slots, stages.free_s[0], now)
        if following >= upcoming_s or np.isinf(following) or _somebody_ends(slots, ends, following):
            break
        now = following
        for slot in range(len(slots)):
            if slots[slot].in_flight == 1 and slots[slot].ready_s <= now:
                slots[slot].in_flight = 0
                slots[slot].rounds += slots[slot].decodes
    return now, steps, turn


@compiled
def _idle_slot(slots: RecordArray, turn: int) -> int:
    """The first slot from ``turn`` on whose sequences wait for their next round."""
    for k in range(len(slots)):
        slot = turn + k if turn + k < len(slots) else turn + k - len(slots)
        if slots[slot].in_flight == 0 and slots[slot].decoding > 0:
            return slot
    return NOBODY


@compiled
def _start_round(tables: Tables, slots: RecordArray, stages: Stages, slot: int, now: float) -> None:
    """Send a step that gives each sequence of a slot a token through the pipeline."""
    decoding = slots[slot].decoding
    slots[slot].kv_sum += decoding
    cell = grid_cell(tables.kv_grid, slots[slot].kv_sum / decoding)
    for kind in range(len(stages.step_s)):
        linear_s = tables.tokens_s[kind, decoding * tables.query_tokens] + tables.logits_s[kind, decoding]
        stages.step_s[kind] = linear_s + decode_attention_s(tables, kind, decoding, cell)
    end = pass_stages(stages, tables.kinds, now)
    slots[slot].n_finishing = 0
    slots[slot].decodes = 1
    slots[slot].in_flight = 1
    slots[slot].ready_s = end
    slots[slot].busy_s = busiest(stages)


@compiled
def _next_pipeline_event(slots: RecordArray, first_stage_free: float, now: float) -> float:
    """When the next step leaves the pipeline, or the first stage is free for a slot that waits for it."""
    following = np.inf
    for slot in range(len(slots)):
        if slots[slot].in_flight == 1:
            following = min(following, slots[slot].ready_s)
        elif slots[slot].decoding > 0 and first_stage_free > now:
            following = min(following, first_stage_free)
    return following


@compiled
def _somebody_ends(slots: RecordArray, ends: IntArray, until: float) -> bool:
    """Return True if a step that leaves the pipeline until then completes a prompt or an answer."""
    for slot in range(len(slots)):
        if slots[slot].in_flight == 1 and slots[slot].ready_s <= until:
            column = (slots[slot].rounds + slots[slot].decodes) % ends.shape[1]
            if slots[slot].n_finishing > 0 or (slots[slot].decodes == 1 and ends[slot, column] != NOBODY):
                return True
    return False


EVENTS_BETWEEN_LOOKS = 16
"""Least number of events between two looks at what running requests are sure to miss."""


@kept_compiled_whole
def run(  # type: ignore[no-untyped-def]
    tables: Tables,
    limits: SlotLimits,
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
    # No literal, of whose type what is given a turn would be compiled a second time.
    turn: int = np.int64(0)  # type: ignore[assignment]
    now, waiting_s, steps, missed, unseen = 0.0, 0.0, 0, False, 0
    while True:
        for slot in range(len(slots)):
            if slots[slot].in_flight == 1 and slots[slot].ready_s <= now:
                finish_step(requests, slots, lists.finishing, lists.ends, slot, counters, limits, promise, delay_s)
        count_late_starts(requests, counters, promise, now)
        # A look at every running request costs as much as so many events.
        unseen += 1
        if unseen > counters[RUNNING] + EVENTS_BETWEEN_LOOKS and not np.isinf(promise.tpot_s):
            missed, unseen = is_sure_to_miss(requests, slots, counters, promise, now), 0
        if missed or is_missed(counters, promise):
            missed = True
            break
        if counters[COMPLETED] == promise.end - promise.first:
            break
        if stages.free_s[0] <= now:
            coasted, until = 0, now
            if len(slots) == 1:
                coasted = coast(tables, limits, requests, slots, lists.ends, counters, evicted, stages, now, np.inf)
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
                slot = start_any_step(tables, limits, requests, slots, lists, counters, evicted, stages, now, turn)
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
    following = next_step_event(slots, first_stage_free, now)
    idle = False
    for slot in range(len(slots)):
        idle = idle or slots[slot].in_flight == 0
    if idle and first_stage_free <= now:
        upcoming = counters[NEXT_NEW] + _arrived(requests, counters, now)
        if upcoming < counters[KNOWN]:
            following = min(following, requests[upcoming].arrival_s)
    return following


@compiled
def next_step_event(slots: RecordArray, first_stage_free: float, now: float) -> float:
    """When the next step ends, or the first stage is free for an idle slot; never where neither is to come."""
    following = np.inf
    for slot in range(len(slots)):
        if slots[slot].in_flight == 1:
            following = min(following, slots[slot].ready_s)
        elif first_stage_free > now:
            following = min(following, first_stage_free)
    return following


@compiled
def _arrived(requests: RecordArray, counters: IntArray, now: float) -> int:
    """Requests that have arrived and were never admitted; asked for times that never go back."""
    while counters[ARRIVED] < counters[KNOWN] and requests[counters[ARRIVED]].arrival_s <= now:
        counters[ARRIVED] += 1
    return counters[ARRIVED] - counters[NEXT_NEW]  # type: ignore[no-any-return]


@compiled
def start_any_step(
    tables: Tables,
    limits: SlotLimits,
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
    somebody_waits = _somebody_waits(requests, counters, now)
    for k in range(len(slots)):
        slot = turn + k if turn + k < len(slots) else turn + k - len(slots)
        if slots[slot].in_flight == 1:
            continue
        if not somebody_waits and slots[slot].decoding == 0 and slots[slot].queue_length == 0:
            continue
        decoding, prompt_tokens = form_step(
            tables, limits, requests, slots, lists, slot, counters, evicted, stages.attention_s, now, False
        )
        if prompt_tokens + decoding > 0:
            slots[slot].in_flight = 1
            slots[slot].ready_s = through_pipeline(tables, slots, stages, slot, decoding, prompt_tokens, now)
            slots[slot].busy_s = busiest(stages)
            return slot
    return NOBODY


@compiled
def _somebody_waits(requests: RecordArray, counters: IntArray, now: float) -> bool:
    """Return True if a request has come that no slot has taken, or taken and lost."""
    if counters[EVICTED] > 0:
        return True
    return counters[NEXT_NEW] < counters[KNOWN] and requests[counters[NEXT_NEW]].arrival_s <= now  # type: ignore[no-any-return]


@compiled
def through_pipeline(
    tables: Tables, slots: RecordArray, stages: Stages, slot: int, decoding: int, prompt_tokens: int, now: float
) -> float:
    """Send the slot's step through the pipeline; returns when it leaves the last stage."""
    cell = step_cell(tables, slots, slot, decoding)
    for kind in range(len(stages.step_s)):
        stages.step_s[kind] = work_s(tables, slots, kind, slot, decoding, prompt_tokens, stages.attention_s[kind], cell)
    return pass_stages(stages, tables.kinds, now)
