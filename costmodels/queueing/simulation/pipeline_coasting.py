"""The same shortcut for pipelines: batches that only decode go round and round while nothing else can happen."""

from __future__ import annotations

import numpy as np

from meshwright.costmodels.queueing.simulation.coasting import next_admission
from meshwright.costmodels.queueing.simulation.engine_state import (
    NOBODY,
    IntArray,
    RecordArray,
    Stages,
    busiest,
    compiled,
    pass_stages,
)
from meshwright.costmodels.queueing.simulation.step_forming import (
    ADMIT_UNTIL_FULL,
    KV_USED,
    Limits,
    Tables,
    decode_attention_s,
    grid_cell,
)


@compiled
def coast_round(  # type: ignore[no-untyped-def]
    tables: Tables,
    limits: Limits,
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
        following = _next_event(slots, stages.free_s[0], now)
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
def _next_event(slots: RecordArray, first_stage_free: float, now: float) -> float:
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
