"""A shortcut of the simulation: decode rounds in one go while nothing else can happen."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from meshwright.costmodels.queueing.simulation.engine_state import NOBODY, FloatArray, IntArray, RecordArray, Stages, compiled
from meshwright.costmodels.queueing.simulation.step_forming import (
    ADMIT_UNTIL_FULL,
    COUNTERS,
    EVICTED,
    KNOWN,
    KV_USED,
    NEXT_NEW,
    RUNNING,
    SlotLimits,
    Tables,
    grid_cell,
    tokens_at_admission,
)


@compiled
def coast(
    tables: Tables,
    limits: SlotLimits,
    requests: RecordArray,
    slots: RecordArray,
    ends: IntArray,
    counters: IntArray,
    evicted: IntArray,
    stages: Stages,
    now: float,
    until_s: float,
) -> int:
    """Run decode rounds of a single stage in one go while nothing else can happen: no prompt is under way, nobody can be
    admitted, and nobody finishes. Only a shortcut: rounds formed one by one take the same time.

    Returns the rounds run, none that starts at ``until_s`` or later; they end when the stage is free.
    """
    rounds, end_s = quiet_rounds(tables, limits, requests, slots, ends, counters, evicted, now, until_s)
    if rounds > 0:
        decoding = slots[0].decoding
        slots[0].kv_sum += rounds * decoding
        slots[0].rounds += rounds
        if limits.admission == ADMIT_UNTIL_FULL:
            counters[KV_USED] += rounds * decoding
        stages.free_s[0] = now + end_s
        stages.busy_s[0] += end_s
    return rounds  # type: ignore[no-any-return]


@compiled
def quiet_rounds(  # type: ignore[no-untyped-def]
    tables: Tables,
    limits: SlotLimits,
    requests: RecordArray,
    slots: RecordArray,
    ends: IntArray,
    counters: IntArray,
    evicted: IntArray,
    now: float,
    until_s: float,
):
    """Rounds of a single stage in which nothing but decoding can happen, up to the first that ends at ``until_s`` or later; and
    the time that they take."""
    decoding = slots[0].decoding
    if decoding == 0 or slots[0].queue_length > 0:
        return 0, 0.0
    upcoming_s = min(until_s, next_admission(limits, requests, slots, counters, evicted))
    if upcoming_s <= now:
        return 0, 0.0
    most = rounds_before_an_end(ends[0], slots[0].rounds, ends.shape[1])
    if limits.admission == ADMIT_UNTIL_FULL:
        most = min(most, (limits.kv_tokens - counters[KV_USED]) // decoding)
    fixed_s = tables.tokens_s[0, decoding * tables.query_tokens] + tables.logits_s[0, decoding]
    return _rounds_until(
        tables.kv_grid, tables.decode_s[0, decoding], fixed_s, slots[0].kv_sum / decoding, most, upcoming_s - now
    )


@compiled
def rounds_before_an_end(ends: IntArray, rounds: int, most: int) -> int:
    """Rounds, at most ``most``, that a slot can do until one in which somebody gets the last token; that one is not counted.
    ``ends`` are the slot's."""
    columns = len(ends)
    column, free = rounds % columns, 0
    while free < most:
        column = column + 1 if column + 1 < columns else 0
        if ends[column] != NOBODY:
            break
        free += 1
    return free


@compiled
def _rounds_until(grid: FloatArray, attention_s: FloatArray, fixed_s: float, kv_tokens: float, most: int, until_s: float):  # type: ignore[no-untyped-def]
    """Rounds, at most ``most``, of sequences that hold kv_tokens tokens each on average and one more in each round, up to the
    first that ends at ``until_s`` or later; and when it ends.

    Within a cell of the grid rounds take linearly more time, so their sum is quadratic in their number.
    """
    rounds, spent_s, last = 0, 0.0, len(grid) - 1
    while rounds < most and spent_s < until_s:
        first = kv_tokens + rounds + 1
        j, fraction = grid_cell(grid, first)
        first_s = fixed_s + attention_s[j] * (1.0 - fraction) + attention_s[j + 1] * fraction
        more, slope_s = most - rounds, 0.0
        if first < grid[0]:
            more = min(more, int(grid[0] - first) + 1)
        elif first < grid[last]:
            slope_s = (attention_s[j + 1] - attention_s[j]) / (grid[j + 1] - grid[j])
            more = min(more, int(grid[j + 1] - first) + 1)
        left_s = until_s - spent_s
        if sum_s(first_s, slope_s, more) >= left_s:
            more = least_with_sum(first_s, slope_s, more, left_s)
        spent_s += sum_s(first_s, slope_s, more)
        rounds += more
    return rounds, spent_s


@compiled
def sum_s(first_s: float, slope_s: float, rounds: int) -> float:
    """Time of rounds each of which takes slope_s more than the one before."""
    return rounds * (first_s + slope_s * (rounds - 1) / 2.0)


@compiled
def least_with_sum(first_s: float, slope_s: float, most: int, wanted_s: float) -> int:
    """The fewest rounds, at most ``most``, which take wanted_s or more: the root of the sum, put right where it is rounded."""
    middle_s = first_s - slope_s / 2.0
    root = middle_s + math.sqrt(max(0.0, middle_s * middle_s + 2.0 * slope_s * wanted_s))
    rounds = most
    if root > 0.0:
        rounds = min(most, max(1, math.ceil(min(float(most), 2.0 * wanted_s / root))))
    while rounds > 1 and sum_s(first_s, slope_s, rounds - 1) >= wanted_s:
        rounds -= 1
    while rounds < most and sum_s(first_s, slope_s, rounds) < wanted_s:
        rounds += 1
    return rounds


@compiled
def next_admission(
    limits: SlotLimits, requests: RecordArray, slots: RecordArray, counters: IntArray, evicted: IntArray
) -> float:
    """When the next request could be admitted if nobody finishes before: its arrival, or never where it finds no room."""
    if not _has_place(slots, limits.sequences):
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


@compiled
def _has_place(slots: RecordArray, sequences: int) -> bool:
    fewest = slots[0].running
    for slot in range(1, len(slots)):
        fewest = min(fewest, slots[slot].running)
    return fewest < sequences  # type: ignore[no-any-return]


# The same shortcut for attention groups in lockstep: decode rounds in one go while nothing else can happen in any group.

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
    limits: SlotLimits,
    requests: RecordArray,
    slots: RecordArray,
    ends: IntArray,
    counters: IntArray,
    own_s: FloatArray,
    now: float,
    arrival_s: float,
):
    """Run decode rounds of all groups in one go, as long as no prompt is under way, nobody can be admitted, nobody finishes
    and the same group stays the slowest. Only a shortcut: steps formed one by one take the same time.

    ``own_s`` is room for two numbers of each group, ``arrival_s`` when the next request comes. Returns (rounds, their time).
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
    until_s = arrival_s - now if may_start else np.inf
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
        counters[groups, WAITED] = (counters[groups, WAITED] + most) % joint.joined_steps if all_decode else 0
    return most, sum_s(first_s, slope_s, most)


@compiled
def _has_room(limits: SlotLimits, requests: RecordArray, counters: IntArray) -> bool:
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
