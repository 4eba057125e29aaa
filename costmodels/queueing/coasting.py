"""A shortcut of the simulation: decode rounds in one go while nothing else can happen."""

from __future__ import annotations

import numpy as np
from numba import njit

from costmodels.queueing.engine_state import NOBODY, FloatArray, IntArray, RecordArray
from costmodels.queueing.step_forming import (
    ADMIT_UNTIL_FULL,
    EVICTED,
    KNOWN,
    KV_USED,
    NEXT_NEW,
    Limits,
    Tables,
    grid_cell,
    tokens_at_admission,
)


@njit()
def coast(
    tables: Tables,
    limits: Limits,
    requests: RecordArray,
    slots: RecordArray,
    ends: IntArray,
    counters: IntArray,
    evicted: IntArray,
    now: float,
    stage_free: FloatArray,
    busy: FloatArray,
) -> int:
    """Run decode rounds in one go while nothing else can happen: no prompt is under way, nobody can be admitted, and
    nobody finishes. Only a shortcut: rounds formed one by one take the same time.

    Returns the rounds run; they end at stage_free[0].
    """
    decoding = slots[0].decoding
    if decoding == 0 or slots[0].queue_length > 0:
        return 0
    upcoming_s = _next_admission(limits, requests, slots, counters, evicted)
    columns = ends.shape[1]
    column = slots[0].rounds % columns
    kv_sum, start_s, rounds = slots[0].kv_sum, now, 0
    grid, attention_s = tables.kv_grid, tables.decode_s[0, decoding]
    fixed_s = tables.tokens_s[0, decoding] + tables.logits_s[0, decoding]
    while upcoming_s > now:
        column = column + 1 if column + 1 < columns else 0
        full = limits.admission == ADMIT_UNTIL_FULL and counters[KV_USED] + (rounds + 1) * decoding > limits.kv_tokens
        if full or ends[0, column] != NOBODY:
            break
        kv_sum += decoding
        j, fraction = grid_cell(grid, kv_sum / decoding)
        now += fixed_s + attention_s[j] * (1.0 - fraction) + attention_s[j + 1] * fraction
        rounds += 1
    if rounds > 0:
        slots[0].kv_sum = kv_sum
        slots[0].rounds += rounds
        if limits.admission == ADMIT_UNTIL_FULL:
            counters[KV_USED] += rounds * decoding
        stage_free[0] = now
        busy[0] += now - start_s
    return rounds


@njit()
def _next_admission(limits: Limits, requests: RecordArray, slots: RecordArray, counters: IntArray, evicted: IntArray) -> float:
    """When the next request could be admitted if nobody finishes before: its arrival, or never where it finds no room."""
    if slots[0].running >= limits.sequences:
        return np.inf
    if counters[EVICTED] > 0:
        request = evicted[counters[EVICTED] - 1]
        arrival_s = -np.inf
    elif counters[NEXT_NEW] < counters[KNOWN]:
        request = counters[NEXT_NEW]
        arrival_s = requests[request].arrival_s
    else:
        return np.inf
    if counters[KV_USED] + tokens_at_admission(limits, requests, request) > limits.kv_tokens:
        return np.inf
    return arrival_s
