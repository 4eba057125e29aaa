"""The same shortcut for attention groups in lockstep: decode rounds in one go while nothing else can happen in any group."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from meshwright.costmodels.queueing.simulation.coasting import least_with_sum, rounds_before_an_end, sum_s
from meshwright.costmodels.queueing.simulation.engine_state import FloatArray, IntArray, RecordArray, compiled
from meshwright.costmodels.queueing.simulation.step_forming import (
    ADMIT_UNTIL_FULL,
    COUNTERS,
    EVICTED,
    KNOWN,
    KV_USED,
    NEXT_NEW,
    RUNNING,
    Limits,
    Tables,
    grid_cell,
    tokens_at_admission,
)

# Counters that attention groups have besides those of every engine: requests given to the group and not answered, and the
# last of its line; of the replica the steps for which prompts have waited for one another.
PRESENT, LAST, WAITED = range(COUNTERS, COUNTERS + 3)
GROUP_COUNTERS = COUNTERS + 3

_FOREVER = 2**62


class Joint(NamedTuple):
    """The joint part of GroupTimes as compiled code takes it, the least time of a step with prompt tokens, and the weights by
    which requests are dealt."""

    total_grid: FloatArray
    experts_s: FloatArray
    gathered_s: FloatArray
    exchanged_s: FloatArray
    shared_s: FloatArray
    beside_tokens: int
    least_prompt_s: float
    joined_steps: int
    waiting_weight: int
    running_weight: int


@compiled
def joint_s(joint: Joint, total: int, fullest: int) -> float:
    """Joint part of a step of so many tokens, those of the fullest group among them."""
    k, fraction = grid_cell(joint.total_grid, total)
    gathered_s = joint.gathered_s[k] * (1.0 - fraction) + joint.gathered_s[k + 1] * fraction
    experts_s = joint.experts_s[k] * (1.0 - fraction) + joint.experts_s[k + 1] * fraction
    routed_s, shared_s = experts_s + min(gathered_s, joint.exchanged_s[fullest]), joint.shared_s[fullest]
    return max(routed_s, shared_s) if fullest <= joint.beside_tokens else routed_s + shared_s  # type: ignore[no-any-return]


@compiled
def coast_groups(  # type: ignore[no-untyped-def]
    tables: Tables,
    joint: Joint,
    limits: Limits,
    requests: RecordArray,
    slots: RecordArray,
    ends: IntArray,
    counters: IntArray,
    own_s: FloatArray,
    now: float,
):
    """Run decode rounds of all groups in one go, as long as no prompt is under way, nobody can be admitted, nobody finishes
    and the same group stays the slowest. Only a shortcut: steps formed one by one take the same time.

    ``own_s`` is room for two numbers of each group. Returns (rounds run, their time).
    """
    groups, most, total, fullest, slowest, may_start = len(slots), _FOREVER, 0, 0, -1, False
    for group in range(groups):
        waiting = counters[group, PRESENT] - counters[group, RUNNING]
        decoding = slots[group].decoding
        full = slots[group].running >= limits.sequences
        if slots[group].queue_length > 0 or (waiting > 0 and not full and _has_room(limits, requests, counters[group])):
            return 0, 0.0
        may_start = may_start or (waiting == 0 and not full)
        if decoding == 0:
            continue
        most = rounds_before_an_end(ends[group], slots[group].rounds, min(most, ends.shape[1]))
        if limits.admission == ADMIT_UNTIL_FULL:
            most = min(most, (limits.kv_tokens - counters[group, KV_USED]) // decoding)
        first_s, slope_s, steady = _rounds_of(tables, decoding, slots[group].kv_sum / decoding)
        most = min(most, steady)
        if most <= 0:
            return 0, 0.0
        own_s[group, 0], own_s[group, 1] = first_s, slope_s
        total += decoding * tables.query_tokens
        fullest = max(fullest, decoding * tables.query_tokens)
        if slowest < 0 or (first_s, slope_s) > (own_s[slowest, 0], own_s[slowest, 1]):
            slowest = group
    if slowest < 0:
        return 0, 0.0
    first_s, slope_s = own_s[slowest, 0], own_s[slowest, 1]
    for group in range(groups):
        if slots[group].decoding > 0 and own_s[group, 1] > slope_s:
            most = min(most, 1 + int(min(1e15, (first_s - own_s[group, 0]) / (own_s[group, 1] - slope_s))))
    first_s += joint_s(joint, total, fullest)
    whole, until_s = counters[groups], np.inf
    if may_start and whole[NEXT_NEW] < whole[KNOWN]:
        until_s = requests[whole[NEXT_NEW]].arrival_s - now
    if sum_s(first_s, slope_s, most) >= until_s:
        most = least_with_sum(first_s, slope_s, most, until_s)
    all_decode = True
    for group in range(groups):
        decoding = slots[group].decoding
        all_decode = all_decode and decoding > 0
        if decoding > 0:
            slots[group].kv_sum += most * decoding
            slots[group].rounds += most
            if limits.admission == ADMIT_UNTIL_FULL:
                counters[group, KV_USED] += most * decoding
    if joint.joined_steps > 0:
        whole[WAITED] = (whole[WAITED] + most) % joint.joined_steps if all_decode else 0
    return most, sum_s(first_s, slope_s, most)


@compiled
def _has_room(limits: Limits, requests: RecordArray, counters: IntArray) -> bool:
    """Return True if the cache of a group has room for its next request, or if an eviction makes the engine look anew."""
    if counters[EVICTED] > 0:
        return True
    return counters[KV_USED] + tokens_at_admission(limits, requests, counters[NEXT_NEW]) <= limits.kv_tokens  # type: ignore[no-any-return]


@compiled
def _rounds_of(tables: Tables, decoding: int, kv_tokens: float):  # type: ignore[no-untyped-def]
    """Own part of a group's next round, what each round after it takes more, and for how many rounds that holds: within a
    cell of the grid."""
    grid, attention_s = tables.kv_grid, tables.decode_s[0, decoding]
    first, last = kv_tokens + 1, len(grid) - 1
    j, fraction = grid_cell(grid, first)
    fixed_s = tables.tokens_s[0, decoding * tables.query_tokens] + tables.logits_s[0, decoding]
    first_s = fixed_s + attention_s[j] * (1.0 - fraction) + attention_s[j + 1] * fraction
    if first < grid[0]:
        return first_s, 0.0, int(grid[0] - first) + 1
    if first >= grid[last]:
        return first_s, 0.0, _FOREVER
    slope_s = (attention_s[j + 1] - attention_s[j]) / (grid[j + 1] - grid[j])
    return first_s, slope_s, math.floor(grid[j + 1] - first) + 1
